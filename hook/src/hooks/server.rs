//! Hooks for the server's own functions, which tie requests to tasks and tasks to slots.

use contextpilot_observer::Note;
use contextpilot_residency::Event;

use crate::attach::original::original;
use crate::attach::{claims, is_program};
use crate::base::abi::Pointer;
use crate::base::guard::guarded;
use crate::capture::{
    connections, hints, only_server, prompts, salts, task_vector, uncached, usage,
};
use crate::channel::{note, push};

/// `server_queue::get_new_id()`, called on the thread of the request.
pub(crate) unsafe fn _ZN12server_queue10get_new_idEv(queue: Pointer) -> i32 {
    let task = original!(_ZN12server_queue10get_new_idEv(queue));
    guarded(|| {
        if only_server::is_followed(queue.addr()) {
            connections::posted(task);
        }
    });
    task
}

/// `server_response::add_waiting_tasks(const std::vector<server_task> &)`, called on the thread of
/// the request before it posts them.
pub(crate) unsafe fn _ZN15server_response17add_waiting_tasksERKSt6vectorI11server_taskSaIS1_EE(
    responses: Pointer,
    tasks: Pointer,
) {
    guarded(|| {
        if !only_server::is_followed(responses.addr()) {
            return;
        }
        // SAFETY: the tasks belong to the caller, which waits for us.
        let tasks = unsafe { task_vector::numbers(tasks) };
        tasks.into_iter().for_each(connections::posted);
    });
    original!(
        _ZN15server_response17add_waiting_tasksERKSt6vectorI11server_taskSaIS1_EE(responses, tasks)
    )
}

/// `server_context_impl::launch_slot_with_task(server_slot &, server_task &&)`.
pub(crate) unsafe fn _ZN19server_context_impl21launch_slot_with_taskER11server_slotO11server_task(
    server: Pointer,
    slot: *const i32,
    task: *const i32,
) -> bool {
    // SAFETY: references, whose first member is the number.
    unsafe { note_launch(slot, task) };
    let launched = original!(
        _ZN19server_context_impl21launch_slot_with_taskER11server_slotO11server_task(
            server, slot, task
        )
    );
    // SAFETY: as before; the slot is the server's.
    unsafe { note_outcome(slot, launched) };
    launched
}

/// The same under its name of 2025.
pub(crate) unsafe fn _ZN14server_context21launch_slot_with_taskER11server_slotO11server_task(
    server: Pointer,
    slot: *const i32,
    task: *const i32,
) -> bool {
    // SAFETY: references, whose first member is the number.
    unsafe { note_launch(slot, task) };
    let launched = original!(
        _ZN14server_context21launch_slot_with_taskER11server_slotO11server_task(server, slot, task)
    );
    // SAFETY: as before; the slot is the server's.
    unsafe { note_outcome(slot, launched) };
    launched
}

/// Call before the launch, which moves the task and may already change the slot's memory.
///
/// # Safety
/// Both point to an object that begins with its number.
unsafe fn note_launch(slot: *const i32, task: *const i32) {
    // Launches without task numbers are of no use.
    if prompts::are_engaged() || is_not_followed() {
        return;
    }
    guarded(|| {
        // SAFETY: the caller's promise.
        let sequence = unsafe { *slot };
        // SAFETY: the caller's promise.
        let task = unsafe { *task };
        uncached::launched(sequence, task);
        salts::launched(sequence, task);
        hints::launched(sequence, task);
        usage::launched(sequence, task);
        push(Event::Launched { sequence, task });
    });
}

/// After the launch, which may have come to nothing.
///
/// # Safety
/// The slot begins with its number.
unsafe fn note_outcome(slot: *const i32, launched: bool) {
    if launched || prompts::are_engaged() || is_not_followed() {
        return;
    }
    guarded(|| {
        // SAFETY: the caller's promise.
        let sequence = unsafe { *slot };
        note(|| Note::Declined { sequence });
    });
}

/// Whether requests of this process are not followed although the server's functions are hooked.
fn is_not_followed() -> bool {
    is_program() || claims::are_several()
}
