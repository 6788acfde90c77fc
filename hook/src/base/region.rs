//! Memory of the system's that takes none until it is used.

use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};
use std::slice;

/// Zeros. Pages that were never written to take no memory, also where the system would give larger pages than it was
/// asked for.
#[derive(Debug)]
pub(crate) struct Region {
    begin: NonNull<u8>,
    size: usize,
}

impl Region {
    /// So many bytes, which must be more than none. `None`: the system does not give them.
    pub(crate) fn new(size: usize) -> Option<Self> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        if size == 0 || isize::try_from(size).is_err() {
            return None;
        }
        // SAFETY: memory of our own, wherever the system likes.
        let begin = unsafe { libc::mmap(ptr::null_mut(), size, access, flags, -1, 0) };
        if begin == libc::MAP_FAILED {
            return None;
        }
        #[cfg(target_os = "linux")]
        // SAFETY: what was just mapped. If it is refused, more memory is taken.
        unsafe {
            libc::madvise(begin, size, libc::MADV_NOHUGEPAGE);
        }
        let begin = NonNull::new(begin.cast())?;
        Some(Self { begin, size })
    }
}

impl Deref for Region {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: mapped, readable, initialised (zeros), and this one's until it is dropped.
        unsafe { slice::from_raw_parts(self.begin.as_ptr(), self.size) }
    }
}

impl DerefMut for Region {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and writable.
        unsafe { slice::from_raw_parts_mut(self.begin.as_ptr(), self.size) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and not used any more.
        unsafe { libc::munmap(self.begin.as_ptr().cast(), self.size) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_zero_and_writable_and_there_may_be_more_than_the_machine_has() {
        let mut region = Region::new(1 << 40).expect("it is not taken yet");
        assert_eq!(region.len(), 1 << 40);
        for at in [0, 4095, 4096, (1 << 40) - 1] {
            assert_eq!(region[at], 0);
            region[at] = 7;
            assert_eq!(region[at], 7);
        }
        assert!(Region::new(0).is_none());
        assert!(Region::new(usize::MAX).is_none());
        assert!(Region::new(isize::MAX as usize).is_none());
    }
}
