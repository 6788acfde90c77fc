//! The originals: the functions that the host would have called without us, each under its own name, and
//! the rows of all of them ([`ROWS`]).

use std::ffi::{c_char, c_int, c_void};
use std::ptr::{self, NonNull};

use super::evidence::{Called, Places};
use super::row::Row;
use super::slot::AddressSlot;
use super::table::{ENCODER, Generations, WITH_MEDIA, newest};
use crate::base::abi::{Batch, ContextParams, Embeddings, Pointer};

/// What a hook returns if it was called although there is no original.
pub(crate) trait Absent {
    const VALUE: Self;
}

impl Absent for () {
    const VALUE: Self = ();
}
impl Absent for bool {
    const VALUE: Self = false;
}
impl Absent for i32 {
    const VALUE: Self = -1;
}
impl Absent for u32 {
    const VALUE: Self = 0;
}
impl Absent for isize {
    const VALUE: Self = -1;
}
impl Absent for usize {
    const VALUE: Self = 0;
}
impl Absent for Pointer {
    const VALUE: Self = ptr::null_mut();
}

/// Whether the host has the function of the table with this name.
pub(crate) fn has(name: &str) -> bool {
    ROWS.iter().any(|row| row.name == name && row.found())
}

/// Whether the host has any of these.
pub(crate) fn has_any(generations: Generations) -> bool {
    newest(generations, has).is_some()
}

/// Whether all calls are seen that have images and sounds encoded, and say which.
pub(crate) fn sees_encoding() -> bool {
    let mut all = ROWS.iter();
    all.all(|row| {
        let is_needed = row.generation == ENCODER || row.name == WITH_MEDIA;
        !is_needed || row.places.patched() > 0
    })
}

macro_rules! slots {
    ($( $module:ident $generation:ident $need:ident
        fn $name:ident($($argument:ident : $type:ty),*) $(-> $result:ty)?; )*) => {
        /// One for each row.
        #[allow(non_upper_case_globals)]
        mod slot {
            $(pub(super) static $name: super::AddressSlot =
                super::AddressSlot::new(concat!(stringify!($name), "\0"));)*
        }
        /// One for each row.
        #[allow(non_upper_case_globals)]
        mod places {
            $(pub(super) static $name: super::Places = super::Places::new();)*
        }
        /// One for each row.
        #[allow(non_upper_case_globals)]
        pub(crate) mod called {
            $(pub(crate) static $name: super::Called = super::Called::new();)*
        }
        /// Those whose addresses are known [at once](AddressSlot::get_at_once). A call of one of these can be the last that a
        /// function does, so that it keeps nothing on the stack.
        #[allow(clippy::type_complexity)]
        pub(crate) mod known {
            use crate::attach::original::*;
            $(
                /// The host's function of this name.
                #[inline]
                pub(crate) fn $name() -> Option<unsafe extern "C-unwind" fn($($type),*) $(-> $result)?> {
                    // SAFETY: the function of this name has this signature (see the headers of the
                    // host's libraries), and function pointers are as large as data pointers here.
                    slot::$name.get_at_once().map(|address| unsafe {
                        std::mem::transmute::<NonNull<c_void>, unsafe extern "C-unwind" fn($($type),*) $(-> $result)?>(address)
                    })
                }
            )*
        }
        $(
            /// The host's function of this name.
            #[allow(clippy::type_complexity)]
            #[inline]
            pub(crate) fn $name() -> Option<unsafe extern "C-unwind" fn($($type),*) $(-> $result)?> {
                // SAFETY: as above.
                known::$name().or_else(|| slot::$name.look_up().map(|address| unsafe {
                    std::mem::transmute::<NonNull<c_void>, unsafe extern "C-unwind" fn($($type),*) $(-> $result)?>(address)
                }))
            }
        )*
        /// Calls them.
        #[allow(clippy::too_many_arguments)]
        pub(crate) mod call {
            use crate::attach::original::*;
            $(
                /// Calls the host's function of this name.
                ///
                /// # Safety
                /// As the function itself requires.
                #[inline]
                pub(crate) unsafe fn $name($($argument: $type),*) $(-> $result)? {
                    match known::$name() {
                        // SAFETY: the caller's promise.
                        Some(original) => unsafe { original($($argument),*) },
                        // SAFETY: the caller's promise.
                        None => unsafe { looked_up::$name($($argument),*) },
                    }
                }
            )*
        }
        /// As [`call`], if the address is not there at once. Apart, so that a call of an original asks one question and not two.
        #[allow(clippy::too_many_arguments)]
        mod looked_up {
            use crate::attach::original::*;
            $(
                #[cold]
                #[inline(never)]
                pub(super) unsafe fn $name($($argument: $type),*) $(-> $result)? {
                    match super::$name() {
                        // SAFETY: the caller's promise.
                        Some(original) => unsafe { original($($argument),*) },
                        None => Absent::VALUE,
                    }
                }
            )*
        }
        /// All rows, in the table's order.
        pub(crate) static ROWS: &[Row] = &[$(
            Row {
                name: stringify!($name),
                generation: stringify!($generation),
                need: stringify!($need),
                slot: &slot::$name,
                places: &places::$name,
                called: &called::$name,
            },
        )*];
    };
}
for_each_hooked!(slots);

/// Calls the original of the hook with this name.
macro_rules! original {
    ($name:ident($($argument:expr),* $(,)?)) => {
        // SAFETY: these are the arguments with which our caller meant to call this function.
        unsafe { $crate::attach::original::call::$name($($argument),*) }
    };
}
pub(crate) use original;

#[cfg(test)]
mod tests {
    use super::ROWS;

    /// The identifier that a mangled name begins with, by the length that stands before it, and the rest.
    fn identifier(mangled: &str) -> Option<(&str, &str)> {
        let digits = mangled.find(|c: char| !c.is_ascii_digit())?;
        let (length, rest) = mangled.split_at(digits);
        rest.split_at_checked(length.parse().ok()?)
    }

    /// A wrong length is a name that no engine has: the function would never be found.
    #[test]
    fn the_lengths_in_mangled_names_are_those_of_their_identifiers() {
        let mut seen = 0;
        let mangled = ROWS.iter().filter_map(|row| row.name.strip_prefix("_Z"));
        let named = |name: &&str| name.starts_with(|c: char| c == 'N' || c.is_ascii_digit());
        for name in mangled.filter(named) {
            let (mut parts, mut rest) = (Vec::new(), name.strip_prefix('N').unwrap_or(name));
            loop {
                let (part, more) = identifier(rest).expect(name);
                parts.push(part);
                rest = more;
                if !name.starts_with('N') || rest.starts_with(['E', 'C', 'D']) {
                    break;
                }
            }
            let is_lower = |part: &&str| part.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
            assert!(parts.iter().all(is_lower), "{name}: {parts:?}");
            assert!(
                !rest.starts_with(|c: char| c.is_ascii_digit() || c == '_'),
                "{name}: {rest}"
            );
            seen += 1;
        }
        assert!(seen >= 4);
    }
}
