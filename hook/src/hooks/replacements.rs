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
        /// The functions themselves.
        pub(super) mod replacement {
            use super::*;
            $(
                pub(in crate::hooks) unsafe extern "C-unwind" fn $name<const ENGINE: usize>($($argument: $type),*) $(-> $result)? {
                    called::$name.note();
                    if ENGINE == 0 && !engines::are_several() {
                        // Nothing to leave at the end, so this is a jump.
                        // SAFETY: called in place of the function of this name, with its contract.
                        return unsafe { $module::$name($($argument),*) };
                    }
                    let _engine = Entered::new(ENGINE);
                    // SAFETY: called in place of the function of this name, with its contract.
                    unsafe { $module::$name($($argument),*) }
                }
            )*
        }
        /// In the table's order.
        #[allow(clippy::type_complexity)]
        pub(crate) static REPLACEMENTS: &[Replacement] = &[$(
            {
                fn code<const ENGINE: usize>() -> *const () {
                    let code: unsafe extern "C-unwind" fn($($type),*) $(-> $result)? = replacement::$name::<ENGINE>;
                    code as *const ()
                }
                Replacement {
                    code: [code::<0>, code::<1>, code::<2>, code::<3>],
                }
            },
        )*];
    };
}
for_each_hooked!(replacements);
