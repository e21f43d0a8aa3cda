//! The server's functions, called directly.
//!
//! pgrx's own bindings catch an error of the server at each call, turn it into a panic and have it raised
//! again at the entry. On a guard's path nothing needs that, a probe makes twenty such calls, and what is
//! raised again has lost its table and constraint. So here an error jumps from where it is raised to the
//! server's handler. What is open then, the transaction's resource owner closes.
//!
//! The contract of every function here, beside its own: no frame between the call and the entry from the
//! server owns a value whose destructor has to run.

use std::ffi::c_int;

use pgrx::pg_sys::{
    AttrNumber, CommandId, Datum, IndexScanDesc, LOCKMODE, Oid, RegProcedure, Relation,
    ScanDirection, ScanKey, Snapshot, StrategyNumber, TupleTableSlot,
};

#[allow(clashing_extern_declarations)]
unsafe extern "C-unwind" {
    pub fn CommandCounterIncrement();
    pub fn GetCurrentCommandId(used: bool) -> CommandId;
    pub fn GetLatestSnapshot() -> Snapshot;
    pub fn GetActiveSnapshot() -> Snapshot;
    pub fn PushActiveSnapshot(snapshot: Snapshot);
    pub fn PopActiveSnapshot();

    fn LockRelationOid(relation: Oid, mode: LOCKMODE);
    fn UnlockRelationOid(relation: Oid, mode: LOCKMODE);
    fn RelationIdGetRelation(relation: Oid) -> Relation;
    fn pgstat_init_relation(relation: Relation);
    pub fn relation_close(relation: Relation, mode: LOCKMODE);

    pub fn table_slot_create(
        relation: Relation,
        list: *mut *mut pgrx::pg_sys::List,
    ) -> *mut TupleTableSlot;
    pub fn ExecDropSingleTupleTableSlot(slot: *mut TupleTableSlot);
    pub fn slot_getsomeattrs_int(slot: *mut TupleTableSlot, last: c_int);

    pub fn ScanKeyEntryInitialize(
        entry: ScanKey,
        flags: c_int,
        attribute: AttrNumber,
        strategy: StrategyNumber,
        subtype: Oid,
        collation: Oid,
        procedure: RegProcedure,
        argument: Datum,
    );
    #[cfg(feature = "pg18")]
    #[link_name = "index_beginscan"]
    fn index_beginscan_18(
        table: Relation,
        index: Relation,
        snapshot: Snapshot,
        instrument: *mut pgrx::pg_sys::IndexScanInstrumentation,
        keys: c_int,
        orders: c_int,
    ) -> IndexScanDesc;
    #[cfg(not(feature = "pg18"))]
    #[link_name = "index_beginscan"]
    fn index_beginscan_15(
        table: Relation,
        index: Relation,
        snapshot: Snapshot,
        keys: c_int,
        orders: c_int,
    ) -> IndexScanDesc;
    pub fn index_rescan(
        scan: IndexScanDesc,
        keys: ScanKey,
        key_count: c_int,
        orders: ScanKey,
        order_count: c_int,
    );
    pub fn index_getnext_slot(
        scan: IndexScanDesc,
        direction: ScanDirection::Type,
        slot: *mut TupleTableSlot,
    ) -> bool;
    pub fn index_endscan(scan: IndexScanDesc);

    pub fn cstring_to_text_with_len(bytes: *const u8, length: c_int) -> *mut pgrx::pg_sys::text;
}

/// Locks and opens a relation; NULL, and no lock, where there is none by then. As `try_relation_open`, but
/// for its question to the catalogue, which the relation cache answers as well.
///
/// # Safety
/// The module's contract.
pub unsafe fn open(oid: Oid, mode: LOCKMODE) -> Relation {
    // SAFETY: by contract; once it is locked, what another transaction did to the relation is known.
    unsafe {
        LockRelationOid(oid, mode);
        let relation = RelationIdGetRelation(oid);
        if relation.is_null() {
            UnlockRelationOid(oid, mode);
        } else {
            pgstat_init_relation(relation);
        }
        relation
    }
}

/// # Safety
/// Both relations are open, the snapshot is active; and the module's contract.
pub unsafe fn index_beginscan(
    table: Relation,
    index: Relation,
    snapshot: Snapshot,
    keys: c_int,
) -> IndexScanDesc {
    // SAFETY: by contract.
    unsafe {
        #[cfg(feature = "pg18")]
        return index_beginscan_18(table, index, snapshot, std::ptr::null_mut(), keys, 0);
        #[cfg(not(feature = "pg18"))]
        return index_beginscan_15(table, index, snapshot, keys, 0);
    }
}
