//! The functions that an object defines, looked up in its hash tables as the dynamic linker does.

use std::ffi::CStr;

use super::object::Object;

const STV_INTERNAL: u8 = 1;
const STV_HIDDEN: u8 = 2;
pub(super) const STT_FUNC: u8 = 2;
const STT_GNU_IFUNC: u8 = 10;

/// A function that an object defines.
pub(in crate::attach) enum Defined {
    /// At this address.
    At(usize),
    /// At an unknown address: a resolver of the object (IFUNC) chose one of several implementations.
    Chosen,
    /// By a symbol that does not say that it is a function's.
    Untyped,
}

impl Object {
    /// The function of this name that the object exports. `hash` is [`gnu_hash`] of the name.
    pub(in crate::attach) fn defined(&self, name: &CStr, hash: u32) -> Option<Defined> {
        if self.hash.is_null() {
            return self.defined_by_older(name);
        }
        const BITS: u32 = u64::BITS;
        // SAFETY: the header of a hash table: number of buckets, first symbol, words of the filter, shift.
        let [buckets, first, words, shift] = unsafe { *self.hash.cast::<[u32; 4]>() };
        if buckets == 0 || words == 0 {
            return None;
        }
        // SAFETY: the header has four words; the filter follows.
        let filter = unsafe { self.hash.add(4) }.cast::<u64>();
        let at = (hash / BITS) & (words - 1);
        // SAFETY: the number of words is a power of two, and the index is reduced to it.
        let word = unsafe { element(filter, at) };
        let wanted = 1_u64 << (hash % BITS) | 1_u64 << ((hash >> (shift & 31)) % BITS);
        if word & wanted != wanted {
            return None;
        }
        // SAFETY: the buckets follow the filter, the chains the buckets.
        let bucket = unsafe { filter.add(words as usize) }.cast::<u32>();
        // SAFETY: as above.
        let chains = unsafe { bucket.add(buckets as usize) };
        // SAFETY: one of the buckets.
        let mut index = unsafe { element(bucket, hash % buckets) };
        if index < first {
            return None;
        }
        loop {
            // SAFETY: each symbol from the first on has a word in the chains; the last word of a
            // chain is odd.
            let chained = unsafe { element(chains, index - first) };
            if chained | 1 == hash | 1 {
                // SAFETY: the table has a symbol for each word of the chains.
                let symbol = unsafe { self.symbol(index) };
                // SAFETY: one of the object's symbols.
                if unsafe { self.name(symbol) } == name {
                    return self.definition(symbol);
                }
            }
            if chained & 1 == 1 {
                return None;
            }
            index += 1;
        }
    }

    /// The same with the older kind of table.
    fn defined_by_older(&self, name: &CStr) -> Option<Defined> {
        if self.older_hash.is_null() {
            return None;
        }
        // SAFETY: the header of a hash table: number of buckets, number of chained symbols.
        let [buckets, count] = unsafe { *self.older_hash.cast::<[u32; 2]>() };
        if buckets == 0 {
            return None;
        }
        // SAFETY: the buckets follow the header, the chains the buckets.
        let bucket = unsafe { self.older_hash.add(2) };
        // SAFETY: as above.
        let chains = unsafe { bucket.add(buckets as usize) };
        // SAFETY: one of the buckets.
        let mut index = unsafe { element(bucket, sysv_hash(name) % buckets) };
        while index != 0 && index < count {
            // SAFETY: the table has a symbol for each element of the chains.
            let symbol = unsafe { self.symbol(index) };
            // SAFETY: one of the object's symbols.
            if unsafe { self.name(symbol) } == name {
                return self.definition(symbol);
            }
            // SAFETY: one of the chains' elements.
            index = unsafe { element(chains, index) };
        }
        None
    }

    fn definition(&self, symbol: &libc::Elf64_Sym) -> Option<Defined> {
        let is_offered = !matches!(symbol.st_other & 3, STV_INTERNAL | STV_HIDDEN);
        match symbol.st_info & 0xf {
            _ if symbol.st_shndx == 0 || !is_offered => None,
            STT_FUNC => Some(Defined::At(
                self.bias.wrapping_add(symbol.st_value as usize),
            )),
            STT_GNU_IFUNC => Some(Defined::Chosen),
            _ => Some(Defined::Untyped),
        }
    }
}

/// # Safety
/// The table has more than `index` elements.
unsafe fn element<T: Copy>(table: *const T, index: u32) -> T {
    // SAFETY: the caller's promise.
    let element = unsafe { table.add(index as usize) };
    // SAFETY: as above.
    unsafe { *element }
}

/// The hash of `DT_GNU_HASH`.
pub(in crate::attach) fn gnu_hash(name: &CStr) -> u32 {
    name.to_bytes().iter().fold(5381_u32, |hash, &byte| {
        hash.wrapping_mul(33).wrapping_add(u32::from(byte))
    })
}

/// The hash of `DT_HASH`.
fn sysv_hash(name: &CStr) -> u32 {
    name.to_bytes().iter().fold(0_u32, |hash, &byte| {
        let hash = (hash << 4).wrapping_add(u32::from(byte));
        let high = hash & 0xf000_0000;
        (hash ^ (high >> 24)) & !high
    })
}
