//! Reads from memory what the dynamic linker has loaded: which functions an object defines, and
//! through which words (GOT entries, and tables of functions) it calls functions of other objects.
//!
//! This module opens and changes nothing. elf(5) and the processor supplements of the System V ABI
//! describe the structures. In a constructor the dynamic linker has finished all relocations. Later, another thread
//! may be loading an object ([`Object::is_ready`]).

mod definitions;
mod object;
mod words;

pub(super) use self::definitions::{Defined, gnu_hash};
pub(super) use self::object::{Changes, Object, are_all, changes, objects, program, visit_objects};
pub(super) use self::words::Word;

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;

    fn dlsym(name: &CStr) -> usize {
        // SAFETY: a C string.
        unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }.addr()
    }

    #[test]
    fn a_function_is_found_at_the_address_that_dlsym_returns() {
        let objects = objects();
        for name in [c"recv", c"accept4", c"shutdown"] {
            let mut found = objects
                .iter()
                .filter_map(|object| object.defined(name, gnu_hash(name)));
            let Some(Defined::At(address)) = found.next() else {
                panic!("{name:?} is a function of the C library's");
            };
            assert_eq!(address, dlsym(name));
        }
        let name = c"contextpilot_no_such_function";
        let mut all = objects.iter();
        assert!(all.all(|object| object.defined(name, gnu_hash(name)).is_none()));
    }

    #[test]
    fn words_are_found_by_what_they_hold() {
        use std::sync::atomic::Ordering::Relaxed;
        let shutdown = dlsym(c"shutdown");
        let places = |words: &mut dyn Iterator<Item = Word<'_>>| -> Vec<usize> {
            let at = words.map(|word| std::ptr::from_ref(word.at).addr());
            at.collect()
        };
        for object in objects() {
            let mut all = object
                .words()
                .filter(|word| word.at.load(Relaxed) == shutdown);
            let mut wanted = object.words_with(|now, _| now == shutdown);
            assert_eq!(places(&mut all), places(&mut wanted));
        }
    }

    #[test]
    fn a_word_holds_the_address_of_the_function_it_is_named_after() {
        let objects = objects();
        let program = &objects[0];
        // This call makes the test's executable have such a word.
        // SAFETY: no descriptor has this number, so the call only fails.
        assert_eq!(unsafe { libc::shutdown(-1, libc::SHUT_RD) }, -1);
        let words: Vec<Word<'_>> = program
            .words()
            .filter(|word| word.name() == c"shutdown")
            .collect();
        assert!(!words.is_empty());
        for word in words {
            let value = word.at.load(std::sync::atomic::Ordering::Relaxed);
            assert_eq!(value, dlsym(c"shutdown"));
        }
    }
}
