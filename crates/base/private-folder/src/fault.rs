//! Decides whether others could change a folder. Pure: reads no files.

use std::fmt;

/// Root, who may do everything anyway.
const ROOT: u32 = 0;
const GROUP_MAY_WRITE: u32 = 0o020;
const OTHERS_MAY_WRITE: u32 = 0o002;
/// Only the owner of a file, of the folder, or root may rename or remove the file.
const STICKY: u32 = 0o1000;

/// Owner and permissions of a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    /// User id.
    pub(crate) owner: u32,
    /// Permissions; further bits of `st_mode` do no harm. Where a folder has an access list,
    /// the group's bits are the most that any entry of the list grants (POSIX.1e 23.1.3).
    pub(crate) mode: u32,
}

impl Facts {
    /// What is wrong with a folder above `user`'s private folder. It must belong to `user` or
    /// root, and no other user may write to it. Root's folders with the sticky bit, such as
    /// `/tmp`, are allowed: files in them can be renamed by their owner and by root only.
    pub(crate) fn fault_above(self, user: u32) -> Option<Fault> {
        let mode = self.mode & 0o7777;
        if self.owner != user && self.owner != ROOT {
            Some(Fault::Owner(self.owner))
        } else if mode & STICKY != 0 && self.owner == ROOT {
            None
        } else {
            Self::open_to(mode)
        }
    }

    /// What is wrong with `user`'s private folder itself.
    pub(crate) fn fault_of_private(self, user: u32) -> Option<Fault> {
        if self.owner != user {
            Some(Fault::Owner(self.owner))
        } else {
            Self::open_to(self.mode & 0o7777)
        }
    }

    /// What is wrong with a symbolic link on the way. The mode of a link has no meaning.
    pub(crate) fn fault_of_link(owner: u32, user: u32) -> Option<Fault> {
        (owner != user && owner != ROOT).then_some(Fault::Link(owner))
    }

    fn open_to(mode: u32) -> Option<Fault> {
        if mode & OTHERS_MAY_WRITE != 0 {
            Some(Fault::Everybody(mode))
        } else if mode & GROUP_MAY_WRITE != 0 {
            Some(Fault::Group(mode))
        } else {
            None
        }
    }
}

/// Why a folder is not safe from others. `Display` says what to do, if the folder's owner can fix it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// It is a file or a link.
    NotAFolder,
    /// It belongs to this user id, which is neither ours nor root's.
    Owner(u32),
    /// It is a symbolic link of this user id's, which is neither ours nor root's.
    Link(u32),
    /// Its group may write to it; the permissions.
    Group(u32),
    /// All users may write to it; the permissions.
    Everybody(u32),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAFolder => f.write_str("it is not a folder"),
            Self::Owner(owner) => write!(f, "it belongs to another user, {owner}"),
            Self::Link(owner) => write!(f, "it is a link of another user's, {owner}"),
            Self::Group(mode) => {
                write!(f, "its group may write to it, mode {mode:04o}; {CLOSE_IT}")
            }
            Self::Everybody(mode) => {
                write!(f, "everybody may write to it, mode {mode:04o}; {CLOSE_IT}")
            }
        }
    }
}

const CLOSE_IT: &str = "`chmod go-w` ends that";

#[cfg(test)]
mod tests {
    use super::*;

    const US: u32 = 1000;
    const THEM: u32 = 1001;

    fn above(owner: u32, mode: u32) -> Option<Fault> {
        Facts { owner, mode }.fault_above(US)
    }

    #[test]
    fn a_folder_above_must_be_ours_or_roots_and_closed() {
        for owner in [US, ROOT] {
            for mode in [0o700, 0o755, 0o750, 0o711, 0o2755, 0o40755] {
                assert_eq!(above(owner, mode), None, "{owner} {mode:o}");
            }
            for (mode, fault) in [
                (0o775, Fault::Group(0o775)),
                (0o720, Fault::Group(0o720)),
                (0o777, Fault::Everybody(0o777)),
                (0o702, Fault::Everybody(0o702)),
                (0o42775, Fault::Group(0o2775)),
            ] {
                assert_eq!(above(owner, mode), Some(fault), "{owner} {mode:o}");
            }
        }
        for mode in [0o700, 0o755, 0o1777] {
            assert_eq!(above(THEM, mode), Some(Fault::Owner(THEM)), "{mode:o}");
        }
    }

    #[test]
    fn the_sticky_bit_is_accepted_on_roots_folders_only() {
        for mode in [0o1777, 0o1775, 0o41777] {
            assert_eq!(above(ROOT, mode), None);
            assert!(above(US, mode).is_some());
        }
    }

    #[test]
    fn root_trusts_no_user() {
        for mode in [0o700, 0o755] {
            let facts = Facts { owner: US, mode };
            assert_eq!(facts.fault_above(ROOT), Some(Fault::Owner(US)));
        }
        assert_eq!(Facts::fault_of_link(US, ROOT), Some(Fault::Link(US)));
    }

    #[test]
    fn the_folder_itself_must_be_ours() {
        let fault = |owner, mode| Facts { owner, mode }.fault_of_private(US);
        assert_eq!(fault(US, 0o700), None);
        // Others may read it: it is closed later.
        assert_eq!(fault(US, 0o755), None);
        assert_eq!(fault(US, 0o1777), Some(Fault::Everybody(0o1777)));
        assert_eq!(fault(US, 0o770), Some(Fault::Group(0o770)));
        assert_eq!(fault(ROOT, 0o700), Some(Fault::Owner(ROOT)));
    }

    #[test]
    fn a_link_must_be_ours_or_roots() {
        assert_eq!(Facts::fault_of_link(US, US), None);
        assert_eq!(Facts::fault_of_link(ROOT, US), None);
        assert_eq!(Facts::fault_of_link(THEM, US), Some(Fault::Link(THEM)));
    }

    #[test]
    fn a_message_says_what_to_do() {
        let said = |fault: Fault| fault.to_string();
        assert_eq!(
            said(Fault::Group(0o775)),
            "its group may write to it, mode 0775; `chmod go-w` ends that"
        );
        assert!(said(Fault::Everybody(0o1777)).starts_with("everybody may write to it, mode 1777"));
        assert!(said(Fault::Owner(65534)).ends_with("another user, 65534"));
    }
}
