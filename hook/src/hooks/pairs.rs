//! The pairs that dyld reads: see `attach/dyld.rs`.

use std::arch::global_asm;

use super::replacements::replacement as ours;

macro_rules! pairs {
    ($( $module:ident $generation:ident $need:ident
        fn $name:ident($($argument:ident : $type:ty),*) $(-> $result:ty)?; )*) => {
        global_asm!(
            ".section __DATA,__interpose,regular,no_dead_strip",
            ".p2align 3",
            ".globl _contextpilot_pairs",
            ".private_extern _contextpilot_pairs",
            "_contextpilot_pairs:",
            $(
                concat!(".weak_reference _", stringify!($name)),
                concat!(".quad {", stringify!($name), "}"),
                concat!(".quad _", stringify!($name)),
            )*
            ".text",
            $($name = sym ours::$name,)*
        );
    };
}
for_each_interposed!(pairs);
