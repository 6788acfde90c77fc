//! What a call into the engine lends to hooks that the engine reaches meanwhile, on the same thread.

use std::cell::Cell;
use std::marker::PhantomData;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::LocalKey;

/// A place for what is lent. Each has one type: with another one, what is [borrowed](Self::borrow) is nonsense.
pub(crate) struct Lender {
    /// How many threads have lent something.
    count: AtomicUsize,
    mine: &'static LocalKey<Cell<*const ()>>,
}

/// Lives as long as something is lent.
pub(crate) struct Lent<'a> {
    lender: &'static Lender,
    what: PhantomData<&'a ()>,
}

impl Lender {
    /// `mine`: null, with a constant initialiser and without a destructor, as the guard's flags.
    pub(crate) const fn new(mine: &'static LocalKey<Cell<*const ()>>) -> Self {
        Self {
            count: AtomicUsize::new(0),
            mine,
        }
    }

    /// Lends this to hooks on this thread.
    pub(crate) fn lend<'a, T>(&'static self, what: &'a T) -> Lent<'a> {
        self.mine.set(ptr::from_ref(what).cast());
        self.count.fetch_add(1, Ordering::Relaxed);
        Lent {
            lender: self,
            what: PhantomData,
        }
    }

    /// Nothing is lent, on any thread.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    /// What this thread has lent.
    ///
    /// # Safety
    /// It has this type, and is used no longer than the hook runs: the function that lent it waits for the call.
    pub(crate) unsafe fn borrow<'a, T>(&self) -> Option<&'a T> {
        let lent = NonNull::new(self.mine.get().cast_mut())?;
        // SAFETY: the caller's promise; `Lent` sets the cell to null when it is dropped.
        Some(unsafe { lent.cast().as_ref() })
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        self.lender.count.fetch_sub(1, Ordering::Relaxed);
        self.lender.mine.set(ptr::null());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    thread_local! {
        static MINE: Cell<*const ()> = const { Cell::new(ptr::null()) };
    }
    static LENDER: Lender = Lender::new(&MINE);

    #[test]
    fn it_is_lent_on_this_thread_and_for_so_long() {
        let value = 7_u32;
        // SAFETY: only numbers of this type are lent here.
        let borrow = || unsafe { LENDER.borrow::<u32>() }.copied();
        assert!(LENDER.is_idle() && borrow().is_none());
        let lent = LENDER.lend(&value);
        assert!(!LENDER.is_idle());
        assert_eq!(borrow(), Some(7));
        std::thread::scope(|scope| {
            let other = scope.spawn(|| (LENDER.is_idle(), borrow()));
            assert_eq!(other.join().expect("no panic"), (false, None));
        });
        drop(lent);
        assert!(LENDER.is_idle() && borrow().is_none());
    }
}
