//! The functions that are called in place of the host's. Each notes that it was called, and calls the
//! body in the module that its row names. In a program that may have several [engines](crate::attach::engines),
//! each exists once for each of them.

use std::ffi::{c_char, c_int};

use super::*;
use crate::attach::Replacement;
use crate::attach::engines::Entered;
use crate::attach::original::{called, original};
use crate::base::abi::{Batch, ContextParams, Embeddings, Pointer};

/// While hooks do not observe, those that fill batches only call the original. Others decide by themselves: what the prefix
/// store has put into the engine stays there, whatever happens to the rest of the library.
macro_rules! only_observes {
    ($observes:ident, batch $name:ident($($argument:ident),*)) => {
        if !$observes {
            return original!($name($($argument),*));
        }
    };
    ($observes:ident, $module:ident $name:ident($($argument:ident),*)) => {
        let _ = $observes;
    };
}

macro_rules! replacements {
    ($( $module:ident $generation:ident $need:ident
        fn $name:ident($($argument:ident : $type:ty),*) $(-> $result:ty)?; )*) => {
        /// In a llama-server, which has one engine. Nothing stands between these and the bodies, as some run for every token.
        pub(super) mod replacement {
            use super::*;
            $(
                pub(in crate::hooks) unsafe extern "C-unwind" fn $name($($argument: $type),*) $(-> $result)? {
                    let observes = called::$name.note();
                    only_observes!(observes, $module $name($($argument),*));
                    // SAFETY: called in place of the function of this name, with its contract.
                    unsafe { $module::$name($($argument),*) }
                }
            )*
        }
        /// In another program.
        mod entered {
            use super::*;
            $(
                pub(super) unsafe extern "C-unwind" fn $name<const ENGINE: usize>($($argument: $type),*) $(-> $result)? {
                    let _engine = Entered::new(ENGINE);
                    // SAFETY: the caller's promise.
                    unsafe { replacement::$name($($argument),*) }
                }
            )*
        }
        /// In the table's order.
        #[allow(clippy::type_complexity)]
        pub(crate) static REPLACEMENTS: &[Replacement] = &[$(
            {
                fn of_server() -> *const () {
                    let code: unsafe extern "C-unwind" fn($($type),*) $(-> $result)? = replacement::$name;
                    code as *const ()
                }
                fn of_engine<const ENGINE: usize>() -> *const () {
                    let code: unsafe extern "C-unwind" fn($($type),*) $(-> $result)? = entered::$name::<ENGINE>;
                    code as *const ()
                }
                Replacement {
                    of_server,
                    of_engines: [of_engine::<0>, of_engine::<1>, of_engine::<2>, of_engine::<3>],
                }
            },
        )*];
    };
}
for_each_hooked!(replacements);
