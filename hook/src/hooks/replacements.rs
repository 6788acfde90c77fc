//! What functions inside the executable are made to jump to: see [`inside`](crate::inside).

use std::ffi::{c_char, c_int};
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::abi::{Batch, ContextParams, Embeddings, Pointer};

/// For one function of the table.
pub(crate) struct Replacement {
    /// Never the exported function: that name may belong to the executable, too.
    pub(crate) code: fn() -> *const (),
    /// Whether it was ever called. Some copies of a function may be inlined.
    pub(crate) called: &'static AtomicBool,
}

macro_rules! replacements {
    ($( $module:ident $generation:ident $need:ident
        fn $name:ident($($argument:ident : $type:ty),*) $(-> $result:ty)?; )*) => {
        #[allow(non_upper_case_globals)]
        mod called {
            use std::sync::atomic::AtomicBool;
            $(pub(super) static $name: AtomicBool = AtomicBool::new(false);)*
        }
        mod replacement {
            use super::*;
            $(
                // Unlike the exported function it takes note of its calls, which also keeps the
                // compiler from merging the two.
                pub(super) unsafe extern "C-unwind" fn $name($($argument: $type),*) $(-> $result)? {
                    if !called::$name.load(Ordering::Relaxed) {
                        called::$name.store(true, Ordering::Relaxed);
                    }
                    // SAFETY: called in place of the function of this name, with its contract.
                    unsafe { $module::$name($($argument),*) }
                }
            )*
        }
        /// In the table's order.
        #[allow(clippy::type_complexity)]
        pub(crate) static REPLACEMENTS: &[Replacement] = &[$(
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
for_each_interposed!(replacements);

/// The same for the functions that are not exported.
pub(crate) mod redirected {
    use super::*;

    for_each_redirected!(replacements);
}
