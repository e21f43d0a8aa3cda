//! Following a tuple's own update chain within the current transaction.

use std::cell::RefCell;
use std::collections::BTreeMap;

use pgrx::pg_sys;
use pgrx::pg_sys::ffi::pg_guard_ffi_boundary;

use super::invalidation;
use super::trigger::Final;

/// What this transaction did to a version of a tuple.
pub enum Fate {
    Left,
    Deleted,
    /// The version that it wrote instead.
    Updated(pg_sys::ItemPointerData),
}

/// # Safety
/// The slot holds a tuple of a heap, pinned until the slot is reused.
unsafe fn header(slot: *mut pg_sys::TupleTableSlot) -> pg_sys::HeapTupleHeader {
    // SAFETY: by contract; a heap's slots hold a heap tuple.
    unsafe {
        let tuple = (*slot.cast::<pg_sys::BufferHeapTupleTableSlot>())
            .base
            .tuple;
        (*tuple).t_data
    }
}

/// What became of the version in `slot`, whose place is `tid`.
///
/// # Safety
/// As for [`header`].
pub unsafe fn fate(tid: &pg_sys::ItemPointerData, slot: *mut pg_sys::TupleTableSlot) -> Fate {
    // SAFETY: by contract.
    unsafe {
        let header = header(slot);
        if !updated_by_us(header) {
            return Fate::Left;
        }
        let next = (*header).t_ctid;
        match same_tid(&next, tid) {
            true => Fate::Deleted,
            false => Fate::Updated(next),
        }
    }
}

/// Where walks ended, by the version that each went on to first. Every version of a tuple may have an event, and would
/// walk to the end of the chain: in the order of the versions, it finds the end of the one before.
struct Ends {
    /// Of the relations' storage.
    epoch: u64,
    ends: BTreeMap<(u32, Place), End>,
}

/// The version where a walk ended, and the (sub)transaction of ours that wrote it.
#[derive(Clone, Copy)]
struct End {
    tid: pg_sys::ItemPointerData,
    writer: pg_sys::TransactionId,
}

/// A tuple's place, as it can be compared.
type Place = (u16, u16, u16);

/// More rows than that are not written several times each in many transactions.
const MOST_ENDS: usize = 1024;

thread_local! {
    static ENDS: RefCell<Ends> = const { RefCell::new(Ends { epoch: 0, ends: BTreeMap::new() }) };
}

impl Ends {
    fn take(
        relation: pg_sys::Oid,
        tid: &pg_sys::ItemPointerData,
    ) -> Option<pg_sys::ItemPointerData> {
        ENDS.with_borrow_mut(|known| {
            if known.epoch != invalidation::epoch() {
                known.ends.clear();
            }
            let end = known.ends.remove(&(relation.to_u32(), place(tid)));
            end.map(|end| end.tid)
        })
    }

    fn put(relation: pg_sys::Oid, next: &pg_sys::ItemPointerData, end: End) {
        ENDS.with_borrow_mut(|known| {
            let epoch = invalidation::epoch();
            if known.epoch != epoch || known.ends.len() == MOST_ENDS {
                known.ends.clear();
                known.epoch = epoch;
            }
            known.ends.insert((relation.to_u32(), place(next)), end);
        });
    }

    fn forget() {
        ENDS.with_borrow_mut(|known| known.ends.clear());
    }

    /// Whoever wrote the end of a chain lived within those who wrote the rest of it: the chain stands as long as its
    /// end does.
    fn forget_rolled_back() {
        // SAFETY: reads backend state, from which whatever is being rolled back counts as gone.
        let stands = |end: &End| unsafe { pg_sys::TransactionIdIsCurrentTransactionId(end.writer) };
        ENDS.with_borrow_mut(|known| known.ends.retain(|_, end| stands(end)));
    }
}

fn place(tid: &pg_sys::ItemPointerData) -> Place {
    (tid.ip_blkid.bi_hi, tid.ip_blkid.bi_lo, tid.ip_posid)
}

/// Leaves the last version of the tuple that this transaction made in `slot`, and says what became of it.
/// Where the transaction deleted it, the slot holds the version that was deleted.
///
/// # Safety
/// The relation is an open heap, `tid` one of its tuples, `slot` fits it.
pub unsafe fn follow(
    relation: pg_sys::Relation,
    mut tid: pg_sys::ItemPointerData,
    slot: *mut pg_sys::TupleTableSlot,
) -> Final {
    // SAFETY: by contract.
    unsafe {
        let oid = (*relation).rd_id;
        let mut second = None;
        let mut deleted = false;
        let mut end = None;
        while fetch(relation, &mut tid, slot) {
            end = Some(End {
                tid,
                writer: (*header(slot)).t_choice.t_heap.t_xmin,
            });
            match fate(&tid, slot) {
                Fate::Left => break,
                Fate::Deleted => {
                    deleted = true;
                    break;
                }
                Fate::Updated(next) => {
                    let known = match second {
                        None => Ends::take(oid, &tid),
                        Some(_) => None,
                    };
                    second.get_or_insert(next);
                    tid = known.unwrap_or(next);
                }
            }
        }
        if let (Some(second), Some(end)) = (second, end) {
            Ends::put(oid, &second, end);
        }
        match (second, deleted) {
            (_, true) => Final::Deleted,
            (None, _) => Final::Current,
            (Some(_), _) => Final::Replaced,
        }
    }
}

unsafe extern "C-unwind" fn on_transaction(
    _event: pg_sys::XactEvent::Type,
    _arg: *mut std::ffi::c_void,
) {
    Ends::forget();
}

unsafe extern "C-unwind" fn on_subtransaction(
    event: pg_sys::SubXactEvent::Type,
    _subtransaction: pg_sys::SubTransactionId,
    _parent: pg_sys::SubTransactionId,
    _arg: *mut std::ffi::c_void,
) {
    // What it wrote is no part of any chain, and its place may be taken.
    if event == pg_sys::SubXactEvent::SUBXACT_EVENT_ABORT_SUB {
        Ends::forget_rolled_back();
    }
}

/// Registers the callbacks; once per backend, when the library is loaded.
pub fn init() {
    // SAFETY: the callbacks neither raise nor call back, as those of an abort must not.
    unsafe {
        pg_sys::RegisterXactCallback(Some(on_transaction), std::ptr::null_mut());
        pg_sys::RegisterSubXactCallback(Some(on_subtransaction), std::ptr::null_mut());
    }
}

/// Leaves a version in `slot`; false where there is none.
///
/// # Safety
/// As for [`follow`].
pub unsafe fn fetch(
    relation: pg_sys::Relation,
    tid: &mut pg_sys::ItemPointerData,
    slot: *mut pg_sys::TupleTableSlot,
) -> bool {
    // SAFETY: by contract; the any-snapshot sees every version that is still there.
    unsafe {
        let any = &raw mut pg_sys::SnapshotAnyData;
        match (*(*relation).rd_tableam).tuple_fetch_row_version {
            Some(fetch) => pg_guard_ffi_boundary(|| fetch(relation, tid, any, slot)),
            None => false,
        }
    }
}

/// Whether a version was updated or deleted by this transaction, in a part of it that is not rolled back.
///
/// # Safety
/// `header` is a pinned tuple's.
unsafe fn updated_by_us(header: pg_sys::HeapTupleHeader) -> bool {
    // SAFETY: by contract. xmax may be a multixact, or a mere locker's.
    unsafe {
        let mask = u32::from((*header).t_infomask);
        let multi = mask & pg_sys::HEAP_XMAX_IS_MULTI != 0;
        let locked_only = mask & pg_sys::HEAP_XMAX_LOCK_ONLY != 0
            || mask & (pg_sys::HEAP_XMAX_IS_MULTI | pg_sys::HEAP_LOCK_MASK)
                == pg_sys::HEAP_XMAX_EXCL_LOCK;
        if mask & pg_sys::HEAP_XMAX_INVALID != 0 || locked_only {
            return false;
        }
        let updater = if multi {
            pg_sys::HeapTupleGetUpdateXid(header)
        } else {
            (*header).t_choice.t_heap.t_xmax
        };
        pg_sys::TransactionIdIsCurrentTransactionId(updater)
    }
}

fn same_tid(a: &pg_sys::ItemPointerData, b: &pg_sys::ItemPointerData) -> bool {
    place(a) == place(b)
}
