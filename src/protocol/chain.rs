//! SQL's `a AND b AND …`: it stops at FALSE, goes on at NULL, and only TRUE passes.

/// An AND chain under evaluation. Each term has a bit, so that a failed chain can name its members.
#[derive(Default)]
pub struct Chain {
    failed: u64,
    stopped: bool,
}

impl Chain {
    pub fn new() -> Self {
        Self::default()
    }

    /// The next term. It is not evaluated once an earlier one was FALSE.
    pub fn and(mut self, bit: u32, term: impl FnOnce() -> Option<bool>) -> Self {
        if !self.stopped {
            match term() {
                Some(true) => {}
                Some(false) => {
                    self.failed |= 1 << bit;
                    self.stopped = true;
                }
                None => self.failed |= 1 << bit,
            }
        }
        self
    }

    /// `(chain) IS TRUE`; otherwise the bits of the terms that were not.
    pub fn verdict(self) -> Result<(), u64> {
        if self.failed == 0 {
            Ok(())
        } else {
            Err(self.failed)
        }
    }
}
