//! Sessions of agents, which tests play as well.

pub(crate) use contextpilot_testbed::{Need, Session, Sessions};
