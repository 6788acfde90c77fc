//! What is in a `std::vector<server_task>`, whose elements differ in size by version.
//!
//! A task begins with its number, its index in the request, its kind, and the number of another
//! task that it is about (-1 where there is none), in every server of 2025. So the elements of a
//! list tell where they are: the same kind again and again, and indices that count from 0.
//!
//! The three pointers of a vector are those of GNU's C++ library; a function that takes another's
//! has another name, as the names of types are part of it.

use std::slice;

use crate::base::abi::Pointer;

/// Words of 4 bytes at which an element may begin: they contain pointers.
const ALIGNMENT: usize = 2;
/// Less than any `server_task`, words.
const SMALLEST: usize = 16;

/// The numbers of the tasks, in their order.
///
/// # Safety
/// There is a `std::vector<server_task>` at `list`, and nobody changes it.
pub(crate) unsafe fn numbers(list: Pointer) -> Vec<i32> {
    // SAFETY: begin and end, the first two of its pointers.
    let [begin, end]: [*const i32; 2] = unsafe { *list.cast() };
    let size = (end.addr().saturating_sub(begin.addr())) / size_of::<i32>();
    if begin.is_null() || size < SMALLEST {
        return Vec::new();
    }
    // SAFETY: the elements, which nobody changes. Those of their words that hold nothing (padding)
    // are read, too: what is in them is not known, but they are never the ones that matter.
    let words = unsafe { slice::from_raw_parts(begin, size) };
    words.chunks(stride(words)).map(|task| task[0]).collect()
}

/// The size of an element, words: the smallest that fits. All of them do where there is only one.
fn stride(words: &[i32]) -> usize {
    (SMALLEST..words.len())
        .step_by(ALIGNMENT)
        .find(|stride| fits(words, *stride))
        .unwrap_or(words.len())
}

fn fits(words: &[i32], stride: usize) -> bool {
    let first = &words[..4];
    words.len() % stride == 0
        && words.chunks(stride).zip(0..).all(|(task, index)| {
            let later = index == 0 || task[0] > first[0];
            later && task[1] == index && task[2..4] == first[2..4]
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A list of so many tasks with these numbers, each of `size` words.
    fn list(numbers: &[i32], size: usize) -> Vec<i32> {
        let tasks = numbers.iter().zip(0..).flat_map(|(number, index)| {
            let mut task = vec![7; size];
            task[..4].copy_from_slice(&[*number, index, 2, -1]);
            task
        });
        tasks.collect()
    }

    fn read(words: &[i32]) -> Vec<i32> {
        let range = words.as_ptr_range();
        let mut vector = [range.start, range.end, range.end];
        // SAFETY: what a vector looks like.
        unsafe { numbers(vector.as_mut_ptr().cast()) }
    }

    #[test]
    fn the_elements_tell_their_size() {
        for (numbers, size) in [
            (&[5][..], 300),
            (&[5, 6, 9], 300),
            (&[5, 6], 64),
            (&[1], 128),
            (&[1, 2, 3, 4, 5, 6, 7, 8], 16),
        ] {
            assert_eq!(read(&list(numbers, size)), numbers);
        }
    }

    #[test]
    fn an_empty_list_has_none() {
        assert!(read(&[]).is_empty());
        assert!(read(&[1, 0, 2, -1]).is_empty());
    }
}
