//! Reads the task numbers in a `std::vector<server_task>`, whose elements differ in size by version.
//!
//! In every server of 2025 a task begins with its number, its index in the request, its kind, and the
//! number of another task that it refers to (-1 if none). So the size of an element can be found: at the
//! right distance, the same kind repeats, and the indices count from 0.
//!
//! A vector has three pointers, in the layout of GNU's C++ library. With another C++ library, the hooked
//! function would have another name, because a mangled name contains the types.

use std::slice;

use crate::base::abi::Pointer;

/// The alignment of an element, in words of 4 bytes: it contains pointers.
const ALIGNMENT: usize = 2;
/// A lower bound for the size of a `server_task`, in words.
const SMALLEST: usize = 16;

/// The numbers of the tasks, in their order.
///
/// # Safety
/// There is a `std::vector<server_task>` at `list`, and no thread changes it.
pub(crate) unsafe fn numbers(list: Pointer) -> Vec<i32> {
    // SAFETY: the first two pointers of a vector are its begin and end.
    let [begin, end]: [*const i32; 2] = unsafe { *list.cast() };
    let size = (end.addr().saturating_sub(begin.addr())) / size_of::<i32>();
    if begin.is_null() || size < SMALLEST {
        return Vec::new();
    }
    // SAFETY: no thread changes the elements. Padding is read too; its value is unknown, but the result
    // does not depend on it.
    let words = unsafe { slice::from_raw_parts(begin, size) };
    words.chunks(stride(words)).map(|task| task[0]).collect()
}

/// The size of an element, in words: the smallest that fits. With a single element, every size fits.
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
        // SAFETY: this has the layout of a vector.
        unsafe { numbers(vector.as_mut_ptr().cast()) }
    }

    #[test]
    fn for_elements_of_any_size_the_numbers_are_read() {
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
    fn an_empty_list_has_no_numbers() {
        assert!(read(&[]).is_empty());
        assert!(read(&[1, 0, 2, -1]).is_empty());
    }
}
