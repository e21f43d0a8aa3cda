//! What this backend has learnt about relations, and when to forget it.
//!
//! Entries are copied out on use and stored only when complete, so that neither an invalidation nor an
//! error half-way can leave anybody with a half or freed entry.

use std::cell::{Cell, RefCell};

use pgrx::pg_sys;

thread_local! {
    static EPOCH: Cell<u64> = const { Cell::new(0) };
    static FORGET: RefCell<Vec<fn(pg_sys::Oid)>> = const { RefCell::new(Vec::new()) };
}

/// A per-relation memory of values of type `V`, found by a key of type `K`.
pub struct Memory<K, V> {
    /// Apart from the values, so that a search stays within a few cache lines.
    keys: Vec<(pg_sys::Oid, K)>,
    values: Vec<V>,
}

impl<K: PartialEq, V: Copy> Memory<K, V> {
    pub const fn new() -> Self {
        Memory {
            keys: Vec::new(),
            values: Vec::new(),
        }
    }

    fn find(&self, relation: pg_sys::Oid, key: &K) -> Option<usize> {
        self.keys
            .iter()
            .position(|(oid, k)| *oid == relation && k == key)
    }

    pub fn get(&self, relation: pg_sys::Oid, key: &K) -> Option<V> {
        self.values.get(self.find(relation, key)?).copied()
    }

    /// The value under `key`, whatever relation it is remembered for.
    pub fn find_by_key(&self, key: &K) -> Option<V> {
        let at = self.keys.iter().position(|(_, k)| k == key)?;
        self.values.get(at).copied()
    }

    pub fn put(&mut self, relation: pg_sys::Oid, key: K, value: V) {
        match self.find(relation, &key) {
            Some(at) => self.values[at] = value,
            None => {
                self.keys.push((relation, key));
                self.values.push(value);
            }
        }
    }

    /// Forgets one relation, or all of them for the invalid OID.
    pub fn forget(&mut self, relation: pg_sys::Oid) {
        let all = relation == pg_sys::InvalidOid;
        let mut at = 0;
        while at < self.keys.len() {
            if all || self.keys[at].0 == relation {
                self.keys.swap_remove(at);
                self.values.swap_remove(at);
            } else {
                at += 1;
            }
        }
    }
}

/// Counts relation invalidations: what was learnt before the last one may be stale.
pub fn epoch() -> u64 {
    EPOCH.get()
}

/// Has `forget` called for every relation that changes.
fn subscribe(forget: fn(pg_sys::Oid)) {
    FORGET.with_borrow_mut(|all| all.push(forget));
}

unsafe extern "C-unwind" fn on_relcache(_arg: pg_sys::Datum, relation: pg_sys::Oid) {
    EPOCH.set(EPOCH.get().wrapping_add(1));
    FORGET.with_borrow(|all| all.iter().for_each(|forget| forget(relation)));
}

/// Registers the callback; once per backend, when the library is loaded.
pub fn init() {
    subscribe(super::map::forget);
    subscribe(super::probe::forget);
    // SAFETY: the callback neither raises nor calls the server, as relcache callbacks must not.
    unsafe {
        pg_sys::CacheRegisterRelcacheCallback(Some(on_relcache), pg_sys::Datum::from(0usize));
    }
}
