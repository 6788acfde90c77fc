//! Which requests belong together, where a trace does not say so.

use crate::request::{NONE, Request};
use crate::tree::{Node, ROOT, Tree};

/// A request goes on with the session of the latest request that it continues: it begins with all of that one's blocks, or all
/// but a last one that was partly filled, and has more. A request is continued once. What continues none begins a session.
/// Returns how many there are.
pub(crate) fn infer(tree: &Tree, requests: &mut [Request], block: u32) -> u32 {
    // The requests that end at a node, the latest first: that of the node, and the one before each.
    let mut open = vec![NONE; tree.len()];
    let mut before = vec![NONE; requests.len()];
    let mut sessions = 0;
    for number in 0..requests.len() {
        let request = requests[number];
        let mut node = match request.end {
            ROOT => ROOT,
            end => tree.parent(end),
        };
        while node != ROOT && open[node as usize] == NONE {
            node = tree.parent(node);
        }
        let continued = match node {
            ROOT => NONE,
            node => std::mem::replace(&mut open[node as usize], NONE),
        };
        requests[number].session = match requests.get(continued as usize) {
            Some(earlier) => {
                open[node as usize] = before[continued as usize];
                earlier.session
            }
            None => {
                sessions += 1;
                sessions - 1
            }
        };
        let stem = stem(tree, &request, block);
        if stem != ROOT {
            before[number] = std::mem::replace(&mut open[stem as usize], number as u32);
        }
    }
    sessions
}

/// The end of the chain that each continuation of a request begins with.
fn stem(tree: &Tree, request: &Request, block: u32) -> Node {
    let is_alone = tree.length(request.end) == 1;
    if request.last < block && is_alone {
        tree.parent(request.end)
    } else {
        request.end
    }
}
