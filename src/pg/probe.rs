//! Questions about sibling rows.
//!
//! A probe opens the table, scans a valid index whose leading columns are equality columns of the
//! question (or the heap, where there is none), and has the whole condition judged again on the raw row.
//! It lies below permissions, policies, plans and search_path, as a unique check does: nothing can blind
//! it and no user's code runs in it. What it sees is the latest committed truth plus the command's own
//! changes, at every isolation level.
//!
//! An error of the server jumps past a probe and its callers up to the trigger's entry: none of them owns a
//! value whose destructor has to run (see [`direct`]).

use std::cell::RefCell;

use pgrx::pg_sys::ffi::pg_guard_ffi_boundary;
use pgrx::{PgSqlErrorCode, pg_sys};

use super::chain;
use super::direct;
use super::error::Failure;
use super::invalidation::{self, Memory};
use super::map::{self, Map};
use super::row::Row;
use super::trigger::{Final, Relation};
use super::value;
use crate::protocol::tables::Table;

/// An equality that every row of the answer satisfies.
pub enum Key<'k> {
    Uuid(&'k [u8; 16]),
    Text(&'k [u8]),
    /// A text that belongs to the question itself, so that a partial index for it serves.
    Word(&'static str),
}

unsafe extern "C-unwind" {
    fn find_inheritance_children(parent: pg_sys::Oid, mode: pg_sys::LOCKMODE) -> *mut pg_sys::List;
}

/// How an answer's row is locked.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Lock {
    ForShare,
    ForUpdate,
}

impl Lock {
    fn mode(self) -> pg_sys::LockTupleMode::Type {
        match self {
            Lock::ForShare => pg_sys::LockTupleMode::LockTupleShare,
            Lock::ForUpdate => pg_sys::LockTupleMode::LockTupleExclusive,
        }
    }
}

/// Whether a row of `T` in the trigger table's schema has these keys and satisfies `condition`.
pub fn exists<T: Table>(
    near: &Relation<'_>,
    keys: &[(T, Key<'_>)],
    mut condition: impl FnMut(&Row<'_, T>) -> bool,
) -> bool {
    let mut found = false;
    Probe::open(near, keys, None).scan(
        |_| true,
        |row| {
            found = condition(row);
            !found
        },
    );
    found
}

/// Whether any row of `T` has `id` in one of these columns: by an index for each, or else by one reading of
/// the whole table.
pub fn any_refers<T: Table>(near: &Relation<'_>, columns: &[T], id: &[u8; 16]) -> bool {
    let by_index = columns
        .iter()
        .all(|column| Probe::open(near, &[(*column, Key::Uuid(id))], None).has_index());
    if by_index {
        return columns
            .iter()
            .any(|column| exists(near, &[(*column, Key::Uuid(id))], |_| true));
    }
    exists(near, &[], |row: &Row<'_, T>| {
        columns.iter().any(|column| row.uuid(*column) == Some(id))
    })
}

/// Whether this transaction has given a row of `T` that had these keys other ones, and left it there; not where it has
/// deleted one that had them.
pub fn has_moved<T: Table>(near: &Relation<'_>, keys: &[(T, Key<'_>)]) -> bool {
    Probe::open(near, keys, None).finds_moved()
}

/// Locks the rows that have these keys and satisfy `condition`, waiting for whoever holds them, and shows
/// each that still does so then.
pub fn lock_each<T: Table>(
    near: &Relation<'_>,
    keys: &[(T, Key<'_>)],
    lock: Lock,
    condition: impl Fn(&Row<'_, T>) -> bool,
    mut visit: impl FnMut(&Row<'_, T>),
) {
    Probe::open(near, keys, Some(lock)).scan(condition, |row| {
        visit(row);
        true
    });
}

/// The most equality columns that a question has.
const MAX_KEYS: usize = 4;

/// What a question's index depends on: its equality columns and the words that some have to equal.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Asked {
    attributes: [i16; MAX_KEYS],
    words: [Option<&'static str>; MAX_KEYS],
}

/// A usable index for a set of equality columns.
#[derive(Clone, Copy)]
struct Choice {
    /// Invalid: no index serves, read the heap.
    index: pg_sys::Oid,
    /// How many leading index columns are bound.
    bound: usize,
    /// At most one row has these keys.
    unique: bool,
    /// For each bound index column, which key it is bound to.
    key: [usize; MAX_KEYS],
    /// For each bound index column, its `=` function.
    equal: [pg_sys::Oid; MAX_KEYS],
}

thread_local! {
    static CHOICES: RefCell<Memory<Asked, Choice>> = const { RefCell::new(Memory::new()) };
}

pub fn forget(relation: pg_sys::Oid) {
    CHOICES.with_borrow_mut(|choices| choices.forget(relation));
    SIBLINGS.with_borrow_mut(|siblings| siblings.forget(relation));
}

struct Probe<'k, T> {
    table: pg_sys::Relation,
    keys: &'k [(T, Key<'k>)],
    lock: Option<Lock>,
}

impl<'k, T: Table> Probe<'k, T> {
    fn open(near: &Relation<'_>, keys: &'k [(T, Key<'k>)], lock: Option<Lock>) -> Self {
        debug_assert!(keys.len() <= MAX_KEYS);
        let mode = match lock {
            None => pg_sys::AccessShareLock,
            Some(_) => pg_sys::RowShareLock,
        } as pg_sys::LOCKMODE;
        Probe {
            table: open_sibling::<T>(near, mode),
            keys,
            lock,
        }
    }

    /// Whether an index serves the question.
    fn has_index(self) -> bool {
        // SAFETY: the table is open.
        unsafe {
            let asked = asked_by(&map::of::<T>(self.table), self.keys);
            let index = open_index(self.table, &asked);
            if let Some((index, _)) = index {
                pg_sys::index_close(index, pg_sys::NoLock as pg_sys::LOCKMODE);
            }
            pg_sys::relation_close(self.table, pg_sys::NoLock as pg_sys::LOCKMODE);
            index.is_some()
        }
    }

    /// Visits the rows that have the keys and satisfy `condition`, until `visit` answers false.
    fn scan(
        self,
        condition: impl Fn(&Row<'_, T>) -> bool,
        mut visit: impl FnMut(&Row<'_, T>) -> bool,
    ) {
        // SAFETY: the table is open; each step is the server's own scan protocol in order. On an
        // error the transaction's resource owner closes what is open here.
        unsafe {
            direct::CommandCounterIncrement();
            direct::PushActiveSnapshot(direct::GetLatestSnapshot());
            let snapshot = direct::GetActiveSnapshot();
            let slot = direct::table_slot_create(self.table, std::ptr::null_mut());
            let map = map::of::<T>(self.table);
            let cursor = Cursor::open(self.table, &map, snapshot, self.keys);
            while cursor.next(slot) {
                if !self.judge(&map, slot, snapshot, &condition, &mut visit) || cursor.is_single() {
                    break;
                }
            }
            cursor.close();
            direct::ExecDropSingleTupleTableSlot(slot);
            direct::PopActiveSnapshot();
            // Locks are kept to the end of the transaction, as a query would.
            direct::relation_close(self.table, pg_sys::NoLock as pg_sys::LOCKMODE);
        }
    }
}

impl<T: Table> Probe<'_, T> {
    fn finds_moved(self) -> bool {
        let mut found = false;
        // SAFETY: the table is open; as for `scan`. The any-snapshot shows every version that is still there, of
        // which only the keys are read.
        unsafe {
            direct::CommandCounterIncrement();
            let version = direct::table_slot_create(self.table, std::ptr::null_mut());
            let other = direct::table_slot_create(self.table, std::ptr::null_mut());
            let map = map::of::<T>(self.table);
            let any = &raw mut pg_sys::SnapshotAnyData;
            let cursor = Cursor::open(self.table, &map, any, self.keys);
            while cursor.next(version) {
                if !has_keys(&Row::<T>::mapped(map, version), self.keys) {
                    continue;
                }
                match chain::fate(&(*version).tts_tid, version) {
                    chain::Fate::Left => {}
                    // Whoever had the keys before and after it, one that had them was deleted.
                    chain::Fate::Deleted => {
                        found = false;
                        break;
                    }
                    chain::Fate::Updated(mut next) => {
                        found |= chain::fetch(self.table, &mut next, other)
                            && !has_keys(&Row::<T>::mapped(map, other), self.keys)
                            && chain::follow(self.table, next, other) != Final::Deleted;
                    }
                }
            }
            cursor.close();
            direct::ExecDropSingleTupleTableSlot(other);
            direct::ExecDropSingleTupleTableSlot(version);
            direct::relation_close(self.table, pg_sys::NoLock as pg_sys::LOCKMODE);
        }
        found
    }

    /// Shows the row in `slot` to `visit` where it fits, also once it is locked; whether to look further.
    ///
    /// # Safety
    /// The slot holds a row of the open table, read under `snapshot`.
    unsafe fn judge(
        &self,
        map: &Map,
        slot: *mut pg_sys::TupleTableSlot,
        snapshot: pg_sys::Snapshot,
        condition: &impl Fn(&Row<'_, T>) -> bool,
        visit: &mut impl FnMut(&Row<'_, T>) -> bool,
    ) -> bool {
        let fits = |row: &Row<'_, T>| has_keys(row, self.keys) && condition(row);
        // SAFETY: by contract; the map is the table's.
        unsafe {
            let mut row = Row::<T>::mapped(*map, slot);
            if !fits(&row) {
                return true;
            }
            if let Some(lock) = self.lock {
                if !lock_row(self.table, slot, snapshot, lock) {
                    return true;
                }
                // What was locked may be a later version than what was read.
                row = Row::mapped(*map, slot);
                if !fits(&row) {
                    return true;
                }
            }
            visit(&row)
        }
    }
}

fn has_keys<T: Table>(row: &Row<'_, T>, keys: &[(T, Key<'_>)]) -> bool {
    keys.iter().all(|(column, key)| match key {
        Key::Uuid(uuid) => row.uuid(*column) == Some(*uuid),
        Key::Text(text) => row.text(*column) == Some(*text),
        Key::Word(word) => row.text(*column) == Some(word.as_bytes()),
    })
}

thread_local! {
    /// The sibling that a view's name led to from a relation's schema.
    static SIBLINGS: RefCell<Memory<(u32, usize), pg_sys::Oid>> = const { RefCell::new(Memory::new()) };
}

/// Opens the ordinary table of `T`'s name in the schema of `near`.
fn open_sibling<T: Table>(near: &Relation<'_>, mode: pg_sys::LOCKMODE) -> pg_sys::Relation {
    // Remembered under its own OID, so that whatever happens to the sibling makes it forgotten: a
    // rename, a drop, another schema. A table that takes the name is found when this one is gone.
    let key = (near.schema_oid().to_u32(), T::NAME.as_ptr() as usize);
    loop {
        let before = invalidation::epoch();
        let known = SIBLINGS.with_borrow(|siblings| siblings.find_by_key(&key));
        let oid = known.unwrap_or_else(|| sibling_oid::<T>(near));
        // SAFETY: it is NULL where the relation is gone once it is locked.
        let relation = unsafe { direct::open(oid, mode) };
        // Dropped or renamed while we waited for the lock: ask again.
        if relation.is_null() || invalidation::epoch() != before && sibling_oid::<T>(near) != oid {
            if !relation.is_null() {
                // SAFETY: opened above.
                unsafe { direct::relation_close(relation, mode) };
            }
            SIBLINGS.with_borrow_mut(|siblings| siblings.forget(oid));
            continue;
        }
        if known.is_none() {
            // SAFETY: the relation is open.
            unsafe { require_ordinary::<T>(relation) };
            SIBLINGS.with_borrow_mut(|siblings| siblings.put(oid, key, oid));
        }
        return relation;
    }
}

fn sibling_oid<T: Table>(near: &Relation<'_>) -> pg_sys::Oid {
    let name = std::ffi::CString::new(T::NAME).unwrap_or_default();
    // SAFETY: a catalogue look-up by name and namespace.
    let oid = unsafe { pg_sys::get_relname_relid(name.as_ptr(), near.schema_oid()) };
    if oid == pg_sys::InvalidOid {
        missing::<T>(near);
    }
    oid
}

/// # Safety
/// The relation is open.
unsafe fn require_ordinary<T: Table>(relation: pg_sys::Relation) {
    // SAFETY: by contract.
    unsafe {
        if (*(*relation).rd_rel).relkind as u8 != pg_sys::RELKIND_RELATION {
            Failure::new(
                PgSqlErrorCode::ERRCODE_WRONG_OBJECT_TYPE,
                format!(
                    "{}, which guard {} reads, is not an ordinary table",
                    map::qualified_name(relation),
                    T::GUARD
                ),
            )
            .raise();
        }
        let no_lock = pg_sys::NoLock as pg_sys::LOCKMODE;
        if (*(*relation).rd_rel).relhassubclass
            && !pg_guard_ffi_boundary(|| find_inheritance_children((*relation).rd_id, no_lock))
                .is_null()
        {
            Failure::new(
                PgSqlErrorCode::ERRCODE_WRONG_OBJECT_TYPE,
                format!(
                    "table {}, which guard {} reads, has child tables, which it does not read",
                    map::qualified_name(relation),
                    T::GUARD
                ),
            )
            .hint("Let no table inherit from the protocol's tables.")
            .raise();
        }
    }
}

fn missing<T: Table>(near: &Relation<'_>) -> ! {
    Failure::new(
        PgSqlErrorCode::ERRCODE_UNDEFINED_TABLE,
        format!(
            "table {}.{}, which guard {} reads, does not exist",
            near.schema_name(),
            T::NAME,
            T::GUARD
        ),
    )
    .hint("Run opengeni_guards.provision() for this schema, or put the table back.")
    .raise()
}

/// Locks the row in `slot` and leaves its latest version there; false where it is gone.
///
/// # Safety
/// The slot holds a row of the open table, read under `snapshot`.
unsafe fn lock_row(
    table: pg_sys::Relation,
    slot: *mut pg_sys::TupleTableSlot,
    snapshot: pg_sys::Snapshot,
    lock: Lock,
) -> bool {
    // SAFETY: by contract; the table access method is the relation's own.
    unsafe {
        let tuple_lock = (*(*table).rd_tableam).tuple_lock;
        let mut tid = (*slot).tts_tid;
        let mut failure = pg_sys::TM_FailureData::default();
        let command = direct::GetCurrentCommandId(true);
        let Some(tuple_lock) = tuple_lock else {
            return false;
        };
        // With FIND_LAST_VERSION the only outcomes besides Ok are versions that are gone for us:
        // deleted, or changed by this very command.
        tuple_lock(
            table,
            &mut tid,
            snapshot,
            slot,
            command,
            lock.mode(),
            pg_sys::LockWaitPolicy::LockWaitBlock,
            pg_sys::TUPLE_LOCK_FLAG_FIND_LAST_VERSION as u8,
            &mut failure,
        ) == pg_sys::TM_Result::TM_Ok
    }
}

/// A scan of the chosen index, or of the heap.
enum Cursor {
    Index {
        scan: pg_sys::IndexScanDesc,
        index: pg_sys::Relation,
        single: bool,
    },
    Heap {
        scan: pg_sys::TableScanDesc,
        table: pg_sys::Relation,
    },
}

impl Cursor {
    /// # Safety
    /// The table is open, the snapshot is active.
    unsafe fn open<T: Table>(
        table: pg_sys::Relation,
        map: &Map,
        snapshot: pg_sys::Snapshot,
        keys: &[(T, Key<'_>)],
    ) -> Cursor {
        // SAFETY: by contract.
        unsafe {
            let asked = asked_by(map, keys);
            if let Some((index, choice)) = open_index(table, &asked) {
                let mut bound: [pg_sys::ScanKeyData; MAX_KEYS] = Default::default();
                for (i, entry) in bound.iter_mut().enumerate().take(choice.bound) {
                    let argument = match keys[choice.key[i]].1 {
                        Key::Uuid(uuid) => pg_sys::Datum::from(uuid.as_ptr()),
                        Key::Text(text) => value::text_datum(text),
                        Key::Word(word) => value::text_datum(word.as_bytes()),
                    };
                    direct::ScanKeyEntryInitialize(
                        entry,
                        0,
                        i as i16 + 1,
                        pg_sys::BTEqualStrategyNumber as pg_sys::StrategyNumber,
                        pg_sys::InvalidOid,
                        *(*index).rd_indcollation.add(i),
                        choice.equal[i],
                        argument,
                    );
                }
                let scan = direct::index_beginscan(table, index, snapshot, choice.bound as i32);
                direct::index_rescan(
                    scan,
                    bound.as_mut_ptr(),
                    choice.bound as i32,
                    std::ptr::null_mut(),
                    0,
                );
                return Cursor::Index {
                    scan,
                    index,
                    single: choice.unique,
                };
            }
            let begin = (*(*table).rd_tableam).scan_begin;
            let flags = pg_sys::ScanOptions::SO_TYPE_SEQSCAN
                | pg_sys::ScanOptions::SO_ALLOW_STRAT
                | pg_sys::ScanOptions::SO_ALLOW_SYNC
                | pg_sys::ScanOptions::SO_ALLOW_PAGEMODE;
            let scan = match begin {
                Some(begin) => begin(
                    table,
                    snapshot,
                    0,
                    std::ptr::null_mut(),
                    std::ptr::null_mut(),
                    flags,
                ),
                None => std::ptr::null_mut(),
            };
            Cursor::Heap { scan, table }
        }
    }

    /// Whether it finds one row at most.
    fn is_single(&self) -> bool {
        matches!(self, Cursor::Index { single: true, .. })
    }

    /// # Safety
    /// The slot fits the table.
    unsafe fn next(&self, slot: *mut pg_sys::TupleTableSlot) -> bool {
        let forward = pg_sys::ScanDirection::ForwardScanDirection;
        // SAFETY: the scan is open. A long scan stays cancellable.
        unsafe {
            match self {
                Cursor::Index { scan, .. } => direct::index_getnext_slot(*scan, forward, slot),
                Cursor::Heap { scan, table } => {
                    pgrx::check_for_interrupts!();
                    match (*(*(*table)).rd_tableam).scan_getnextslot {
                        Some(next) => next(*scan, forward, slot),
                        None => false,
                    }
                }
            }
        }
    }

    /// # Safety
    /// Called once.
    unsafe fn close(self) {
        // SAFETY: by contract; both are open.
        unsafe {
            match self {
                Cursor::Index { scan, index, .. } => {
                    direct::index_endscan(scan);
                    direct::relation_close(index, pg_sys::NoLock as pg_sys::LOCKMODE);
                }
                Cursor::Heap { scan, table } => {
                    if let Some(end) = (*(*table).rd_tableam).scan_end {
                        end(scan);
                    }
                }
            }
        }
    }
}

fn asked_by<T: Table>(map: &Map, keys: &[(T, Key<'_>)]) -> Asked {
    let mut asked = Asked {
        attributes: [0; MAX_KEYS],
        words: [None; MAX_KEYS],
    };
    for (i, (column, key)) in keys.iter().enumerate().take(MAX_KEYS) {
        asked.attributes[i] = map.attribute(*column);
        if let Key::Word(word) = key {
            asked.words[i] = Some(word);
        }
    }
    asked
}

/// The index for these equality columns, opened; `None` where the heap has to be read.
///
/// # Safety
/// The table is open.
unsafe fn open_index(table: pg_sys::Relation, asked: &Asked) -> Option<(pg_sys::Relation, Choice)> {
    // SAFETY: by contract. An index that was dropped or broken since it was chosen is chosen anew.
    unsafe {
        let oid = (*table).rd_id;
        for _ in 0..8 {
            let choice = match CHOICES.with_borrow(|choices| choices.get(oid, asked)) {
                Some(choice) => choice,
                None => {
                    let before = invalidation::epoch();
                    let (choice, lasting) = choose(table, asked);
                    if lasting && invalidation::epoch() == before {
                        CHOICES.with_borrow_mut(|choices| choices.put(oid, *asked, choice));
                    }
                    choice
                }
            };
            if choice.index == pg_sys::InvalidOid {
                return None;
            }
            let before = invalidation::epoch();
            let index = direct::open(choice.index, pg_sys::AccessShareLock as pg_sys::LOCKMODE);
            let usable = !index.is_null()
                && (invalidation::epoch() == before || bind(index, table, asked).is_some());
            if usable {
                return Some((index, choice));
            }
            if !index.is_null() {
                direct::relation_close(index, pg_sys::AccessShareLock as pg_sys::LOCKMODE);
            }
            forget(oid);
        }
        None
    }
}

/// The valid index that leads to one row, or else the one that binds most leading columns; and whether that
/// stays so until the catalogue changes: an index that is too young now comes of age in silence.
///
/// # Safety
/// The table is open.
unsafe fn choose(table: pg_sys::Relation, asked: &Asked) -> (Choice, bool) {
    let mut best = Choice {
        index: pg_sys::InvalidOid,
        bound: 0,
        unique: false,
        key: [0; MAX_KEYS],
        equal: [pg_sys::InvalidOid; MAX_KEYS],
    };
    let mut lasting = true;
    // SAFETY: by contract.
    unsafe {
        let list = pg_sys::RelationGetIndexList(table);
        let count = if list.is_null() { 0 } else { (*list).length };
        for n in 0..count {
            let oid = pg_sys::list_nth_oid(list, n);
            let index = pg_sys::try_relation_open(oid, pg_sys::AccessShareLock as pg_sys::LOCKMODE);
            if index.is_null() {
                continue;
            }
            lasting &= !is_too_young(index);
            if let Some(choice) = bind(index, table, asked)
                && (choice.unique, choice.bound) > (best.unique, best.bound)
            {
                best = choice;
            }
            pg_sys::relation_close(index, pg_sys::AccessShareLock as pg_sys::LOCKMODE);
        }
        pg_sys::list_free(list);
    }
    (best, lasting)
}

/// Whether old rows may be missing from the index for snapshots that are still in use: rows that were
/// updated in place before it was built.
///
/// # Safety
/// The index is open.
unsafe fn is_too_young(index: pg_sys::Relation) -> bool {
    // SAFETY: by contract; an index has its catalogue row.
    unsafe {
        if !(*(*index).rd_index).indcheckxmin {
            return false;
        }
        let header = (*(*index).rd_indextuple).t_data;
        let frozen =
            u32::from((*header).t_infomask) & pg_sys::HEAP_XMIN_FROZEN == pg_sys::HEAP_XMIN_FROZEN;
        let built_by = (*header).t_choice.t_heap.t_xmin;
        !frozen && !pg_sys::TransactionIdPrecedes(built_by, pg_sys::TransactionXmin)
    }
}

/// Whether every row with these keys is in the index: it has no predicate, or one that says only that a
/// key is not NULL or equals the word that it has to equal anyway.
///
/// # Safety
/// The index is open.
unsafe fn predicate_holds(index: pg_sys::Relation, asked: &Asked) -> bool {
    // SAFETY: by contract; each node is read as what its tag says it is.
    unsafe {
        let predicate = pg_sys::RelationGetIndexPredicate(index);
        if predicate.is_null() {
            return true;
        }
        (0..(*predicate).length).all(|n| {
            let node = pg_sys::list_nth(predicate, n).cast::<pg_sys::Node>();
            match (*node).type_ {
                pg_sys::NodeTag::T_NullTest => {
                    let test = node.cast::<pg_sys::NullTest>();
                    (*test).nulltesttype == pg_sys::NullTestType::IS_NOT_NULL
                        && key_of((*test).arg, asked).is_some()
                }
                pg_sys::NodeTag::T_OpExpr => equals_word(node.cast(), asked),
                _ => false,
            }
        })
    }
}

/// Which key a predicate's plain column is.
///
/// # Safety
/// `node` is an expression node.
unsafe fn key_of(node: *mut pg_sys::Expr, asked: &Asked) -> Option<usize> {
    // SAFETY: by contract; read as what its tag says it is.
    unsafe {
        if (*node.cast::<pg_sys::Node>()).type_ != pg_sys::NodeTag::T_Var {
            return None;
        }
        let attribute = (*node.cast::<pg_sys::Var>()).varattno;
        let is_key = |a: &i16| attribute > 0 && *a == attribute;
        asked.attributes.iter().position(is_key)
    }
}

/// Whether a predicate is `column = 'word'` for a column that has to equal that word.
///
/// # Safety
/// `node` is an operator expression.
unsafe fn equals_word(node: *mut pg_sys::OpExpr, asked: &Asked) -> bool {
    // SAFETY: by contract; arguments are read as what their tags say they are.
    unsafe {
        let arguments = (*node).args;
        if (*node).opno.to_u32() != pg_sys::TextEqualOperator || (*arguments).length != 2 {
            return false;
        }
        let constant = pg_sys::list_nth(arguments, 1).cast::<pg_sys::Node>();
        if (*constant).type_ != pg_sys::NodeTag::T_Const {
            return false;
        }
        let constant = constant.cast::<pg_sys::Const>();
        let key = key_of(pg_sys::list_nth(arguments, 0).cast(), asked);
        let word = key.and_then(|key| asked.words[key]);
        !(*constant).constisnull
            && word.is_some_and(|w| value::payload((*constant).constvalue) == w.as_bytes())
    }
}

/// How an index serves these equality columns, if it does: complete, valid, whole-table, btree, with
/// the type's own equality under the column's own collation.
///
/// # Safety
/// Both relations are open.
unsafe fn bind(index: pg_sys::Relation, table: pg_sys::Relation, asked: &Asked) -> Option<Choice> {
    // SAFETY: by contract; the arrays have an element per key column.
    unsafe {
        let form = (*index).rd_index;
        if form.is_null()
            || (*form).indrelid != (*table).rd_id
            || !(*form).indisvalid
            || is_too_young(index)
            || (*(*index).rd_rel).relam != pg_sys::BTREE_AM_OID
            || !predicate_holds(index, asked)
        {
            return None;
        }
        let mut choice = Choice {
            index: (*index).rd_id,
            bound: 0,
            unique: false,
            key: [0; MAX_KEYS],
            equal: [pg_sys::InvalidOid; MAX_KEYS],
        };
        let columns = (*form).indkey.values.as_slice((*form).indnkeyatts as usize);
        for (i, column) in columns.iter().enumerate() {
            let bound = |a: &i16| a == column && *a > 0;
            let Some(key) = asked.attributes.iter().position(bound) else {
                break;
            };
            let family = *(*index).rd_opfamily.add(i);
            let ty = *(*index).rd_opcintype.add(i);
            let attribute = map::attribute_of(table, *column);
            let operator =
                pg_sys::get_opfamily_member(family, ty, ty, pg_sys::BTEqualStrategyNumber as i16);
            let default_operator =
                (*pg_sys::lookup_type_cache(ty, pg_sys::TYPECACHE_EQ_OPR as i32)).eq_opr;
            if ty != attribute.atttypid
                || *(*index).rd_indcollation.add(i) != attribute.attcollation
                || operator == pg_sys::InvalidOid
                || operator != default_operator
            {
                break;
            }
            choice.key[i] = key;
            choice.equal[i] = pg_sys::get_opcode(operator);
            choice.bound = i + 1;
        }
        // A deferred unique index holds what its name says at COMMIT only.
        choice.unique =
            (*form).indisunique && (*form).indimmediate && choice.bound == columns.len();
        (choice.bound > 0).then_some(choice)
    }
}
