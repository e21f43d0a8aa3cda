//! Following a tuple's own update chain within the current transaction.

use pgrx::pg_sys;
use pgrx::pg_sys::ffi::pg_guard_ffi_boundary;

use super::trigger::Final;

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
    let mut fate = Final::Current;
    // SAFETY: by contract; a heap's slots hold a heap tuple, pinned until the slot is reused.
    unsafe {
        while fetch(relation, &mut tid, slot) {
            let tuple = (*slot.cast::<pg_sys::BufferHeapTupleTableSlot>())
                .base
                .tuple;
            let header = (*tuple).t_data;
            if !updated_by_us(header) {
                return fate;
            }
            let next = (*header).t_ctid;
            if same_tid(&next, &tid) {
                return Final::Deleted;
            }
            tid = next;
            fate = Final::Replaced;
        }
    }
    fate
}

/// # Safety
/// As for [`follow`].
unsafe fn fetch(
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
    (a.ip_blkid.bi_hi, a.ip_blkid.bi_lo, a.ip_posid)
        == (b.ip_blkid.bi_hi, b.ip_blkid.bi_lo, b.ip_posid)
}
