//! What the system keeps of files in memory.

use std::path::PathBuf;

use contextpilot_testbed::Result;

/// The next reader of these files reads them from the disk, if the system does as it is told.
///
/// # Errors
/// When a file cannot be read, or the system has no such call.
#[cfg(target_os = "linux")]
pub(crate) fn forget(files: &[PathBuf]) -> Result<()> {
    use rustix::fs::{Advice, fadvise};

    for path in files {
        let file = std::fs::File::open(path)?;
        // What is not on the disk yet cannot be dropped.
        file.sync_data()?;
        fadvise(&file, 0, None, Advice::DontNeed).map_err(std::io::Error::from)?;
    }
    Ok(())
}

/// See above.
#[cfg(not(target_os = "linux"))]
pub(crate) fn forget(_files: &[PathBuf]) -> Result<()> {
    Err(crate::lab::failed("files cannot be forgotten here"))
}
