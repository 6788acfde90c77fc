//! What every other module uses. Uses none of them.

pub(crate) mod abi;
pub(crate) mod bounds;
pub(crate) mod clock;
pub(crate) mod environment;
pub(crate) mod faults;
pub(crate) mod guard;
pub(crate) mod inactive;
pub(crate) mod lent;
pub(crate) mod log;
pub(crate) mod mode;
pub(crate) mod params;
pub(crate) mod region;
pub(crate) mod signals;
pub(crate) mod status;
