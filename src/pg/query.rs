//! Queries and changes of the catalogues and of what this library keeps beside them, at every isolation level by what
//! is committed when they are made.

use std::cell::Cell;
use std::ffi::c_long;

use pgrx::datum::DatumWithOid;
use pgrx::pg_sys;
use pgrx::spi::{self, Spi, SpiError, SpiHeapTupleData};

use super::value::palloc_cstring;

thread_local! {
    /// The snapshot that the queries of a look share, by its address.
    static SHARED: Cell<pg_sys::Snapshot> = const { Cell::new(std::ptr::null_mut()) };
}

/// Ends a look, also where an error does.
struct Look(pg_sys::Snapshot);

impl Drop for Look {
    fn drop(&mut self) {
        SHARED.set(self.0);
    }
}

/// Runs `body`, which changes nothing: all its queries see what is committed by now.
pub fn at_once<T>(body: impl FnOnce() -> T) -> T {
    push_latest();
    // SAFETY: a snapshot has just been pushed; on an error the (sub)transaction's abort pops it.
    unsafe {
        let look = Look(SHARED.replace(pg_sys::GetActiveSnapshot()));
        let result = body();
        drop(look);
        pg_sys::PopActiveSnapshot();
        result
    }
}

fn push_latest() {
    // SAFETY: reads backend state; what this transaction has just done counts.
    unsafe {
        pg_sys::CommandCounterIncrement();
        pg_sys::PushActiveSnapshot(pg_sys::GetLatestSnapshot());
    }
}

fn is_shared() -> bool {
    // SAFETY: reads backend state.
    unsafe { pg_sys::ActiveSnapshotSet() && pg_sys::GetActiveSnapshot() == SHARED.get() }
}

/// No limit of rows.
const ALL: c_long = 0;

/// Every row that a SELECT returns, as `read` sees it.
///
/// pgrx's own `select` sees what the caller's statement or, at REPEATABLE READ, its transaction sees: not what somebody
/// changed while a lock was waited for.
pub fn rows<T>(
    sql: &str,
    arguments: &[DatumWithOid<'_>],
    mut read: impl FnMut(SpiHeapTupleData<'_>) -> spi::Result<T>,
) -> spi::Result<Vec<T>> {
    let sql = palloc_cstring(sql.as_bytes());
    let mut types: Vec<pg_sys::Oid> = arguments.iter().map(DatumWithOid::oid).collect();
    let known = |argument: &DatumWithOid<'_>| argument.datum().map(|datum| datum.sans_lifetime());
    let mut values: Vec<pg_sys::Datum> = arguments
        .iter()
        .map(|argument| known(argument).unwrap_or(pg_sys::Datum::null()))
        .collect();
    let nulls: Vec<i8> = arguments
        .iter()
        .map(|argument| if known(argument).is_some() { b' ' } else { b'n' } as i8)
        .collect();
    // SAFETY: the snapshot's pair of calls; on an error the (sub)transaction's abort pops it. Arguments outlive the
    // call, a row is read while it is connected.
    unsafe {
        let shared = is_shared();
        if !shared {
            push_latest();
        }
        let result = connected(|| {
            Spi::check_status(pg_sys::SPI_execute_with_args(
                sql.as_ptr(),
                arguments.len() as i32,
                types.as_mut_ptr(),
                values.as_mut_ptr(),
                nulls.as_ptr().cast(),
                true,
                ALL,
            ))?;
            let table = pg_sys::SPI_tuptable
                .as_ref()
                .ok_or(SpiError::NoTupleTable)?;
            std::slice::from_raw_parts(table.vals, table.numvals as usize)
                .iter()
                .filter_map(|tuple| SpiHeapTupleData::new(table.tupdesc, *tuple).transpose())
                .map(|row| row.and_then(&mut read))
                .collect()
        });
        if !shared {
            pg_sys::PopActiveSnapshot();
        }
        result
    }
}

/// Executes a statement that has no parameters. What it changes of a table is chosen as [`rows`] sees it.
pub fn execute(sql: &str) -> spi::Result<()> {
    let sql = palloc_cstring(sql.as_bytes());
    let none = std::ptr::null_mut::<std::ffi::c_void>();
    connected(|| {
        // SAFETY: a plan of this connection, which pushes its own copy of the snapshot.
        let status = unsafe {
            let plan = pg_sys::SPI_prepare(sql.as_ptr(), 0, none.cast());
            if plan.is_null() {
                pg_sys::SPI_result
            } else {
                let latest = pg_sys::GetLatestSnapshot();
                pg_sys::SPI_execute_snapshot(
                    plan,
                    none.cast(),
                    none.cast(),
                    latest,
                    none.cast(),
                    false,
                    true,
                    ALL,
                )
            }
        };
        Spi::check_status(status).map(drop)
    })
}

fn connected<T>(body: impl FnOnce() -> T) -> T {
    // SAFETY: a pair of calls; on an error the (sub)transaction's abort disconnects.
    unsafe {
        pg_sys::SPI_connect();
        let result = body();
        pg_sys::SPI_finish();
        result
    }
}
