//! The functions that are called in place of the host's. Each notes that it was called, and calls the
//! body in the module that its row names. Each exists once for each [engine](crate::attach::engines).

use std::ffi::{c_char, c_int};

use super::*;
use crate::attach::Replacement;
use crate::attach::engines::{self, Entered};
use crate::attach::original::called;
use crate::base::abi::{Batch, ContextParams, Embeddings, Pointer};

macro_rules! replacements {
    ($( $module:ident $generation:ident $need:ident
        fn $name:ident($($argument:ident : $type:ty),*) $(-> $result:ty)?; )*) => {
        /// What all engines share. Each body is called at one place, so that it can be inlined there.
        mod shared {
            use super::*;
            $(
                #[inline(never)]
                pub(super) unsafe extern "C-unwind" fn $name($($argument: $type),*) $(-> $result)? {
                    called::$name.note();
                    // SAFETY: called in place of the function of this name, with its contract.
                    unsafe { $module::$name($($argument),*) }
                }
            )*
        }
        /// With several engines. Apart, so that with one nothing is made ready for what comes after the call.
        mod entered {
            use super::*;
            $(
                #[inline(never)]
                pub(super) unsafe extern "C-unwind" fn $name<const ENGINE: usize>($($argument: $type),*) $(-> $result)? {
                    let _engine = Entered::new(ENGINE);
                    // SAFETY: the caller's promise.
                    unsafe { shared::$name($($argument),*) }
                }
            )*
        }
        /// The functions of the first engine.
        pub(super) mod replacement {
            use super::*;
            $(
                pub(in crate::hooks) unsafe extern "C-unwind" fn $name($($argument: $type),*) $(-> $result)? {
                    if engines::are_several() {
                        // SAFETY: the caller's promise.
unsafe { entered::$name::<0>($($argument),*) }
} else {
                        // SAFETY: the caller's promise.
unsafe { shared::$name($($argument),*) }
}
                }
            )*
        }
        /// In the table's order.
        #[allow(clippy::type_complexity)]
        pub(crate) static REPLACEMENTS: &[Replacement] = &[$(
            {
                fn first() -> *const () {
                    let code: unsafe extern "C-unwind" fn($($type),*) $(-> $result)? = replacement::$name;
                    code as *const ()
                }
                fn further<const ENGINE: usize>() -> *const () {
                    let code: unsafe extern "C-unwind" fn($($type),*) $(-> $result)? = entered::$name::<ENGINE>;
                    code as *const ()
                }
                Replacement {
                    code: [first, further::<1>, further::<2>, further::<3>],
                }
            },
        )*];
    };
}
for_each_hooked!(replacements);
