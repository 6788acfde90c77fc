//! A folder for what a user keeps private.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;

use tempfile::TempDir;

/// A new folder that is closed to others, whatever the umask of this process is: the hook and its commands
/// trust no other.
///
/// # Panics
/// It cannot be made.
pub fn private_folder() -> TempDir {
    let private = Permissions::from_mode(0o700);
    let made = tempfile::Builder::new().permissions(private).tempdir();
    made.expect("a folder for temporary files")
}
