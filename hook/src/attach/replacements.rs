//! What is called in place of the host's functions: notes that it was called, and goes on to the
//! body in [`hooks`](crate::hooks).

use std::ffi::{c_char, c_int};

use super::evidence::Called;
use crate::base::abi::{Batch, ContextParams, Embeddings, Pointer};
use crate::hooks::*;

/// For one function of the table.
pub(super) struct Replacement {
    code: fn() -> *const (),
    pub(super) called: &'static Called,
}

impl Replacement {
    /// Where its code is.
    pub(super) fn code(&self) -> *const () {
        (self.code)()
    }

    /// The same, as a number.
    pub(super) fn address(&self) -> usize {
        self.code().expose_provenance()
    }
}

macro_rules! replacements {
    ($( $module:ident $generation:ident $need:ident
        fn $name:ident($($argument:ident : $type:ty),*) $(-> $result:ty)?; )*) => {
        #[allow(non_upper_case_globals)]
        mod called {
            $(pub(super) static $name: super::Called = super::Called::new();)*
        }
        /// The functions themselves.
        pub(super) mod replacement {
            use super::*;
            $(
                pub(in crate::attach) unsafe extern "C-unwind" fn $name($($argument: $type),*) $(-> $result)? {
                    called::$name.note();
                    // SAFETY: called in place of the function of this name, with its contract.
                    unsafe { $module::$name($($argument),*) }
                }
            )*
        }
        /// In the table's order.
        #[allow(clippy::type_complexity)]
        pub(super) static REPLACEMENTS: &[Replacement] = &[$(
            Replacement {
                code: || {
                    let code: unsafe extern "C-unwind" fn($($type),*) $(-> $result)? = replacement::$name;
                    code as *const ()
                },
                called: &called::$name,
            },
        )*];
    };
}
for_each_hooked!(replacements);
