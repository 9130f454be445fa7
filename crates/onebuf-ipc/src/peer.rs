//! Who is at the other end of a socket, as the kernel says, and who may be.

#![allow(unsafe_code)]

use std::fmt;
use std::os::fd::{AsRawFd, BorrowedFd};

use onebuf_core::{Error, Result};

/// The process at the other end, as the kernel knew it when it connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its process id; 0 for a process that this one's PID namespace does not show, as of the host for a container.
    pub pid: i32,
    /// Its effective user.
    pub uid: u32,
    /// Its effective group.
    pub gid: u32,
}

impl Peer {
    /// Who is at the other end of a connected Unix socket.
    ///
    /// # Errors
    /// [`Error::Os`] where it is no such socket.
    pub(crate) fn of(socket: BorrowedFd<'_>) -> Result<Peer> {
        let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut bytes = size_of::<libc::ucred>() as libc::socklen_t;
        // rustix has no such call for a peer without a process id.
        // SAFETY: the descriptor is open, and the kernel writes at most `bytes` bytes to `found`, which is integers.
        let code = unsafe {
            let value = (&raw mut found).cast::<libc::c_void>();
            libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, value, &mut bytes)
        };
        if code != 0 {
            return Err(Error::os("SO_PEERCRED", &std::io::Error::last_os_error()));
        }
        Ok(Peer { pid: found.pid, uid: found.uid, gid: found.gid })
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pid {
            0 => f.write_str("a process of another PID namespace"),
            pid => write!(f, "process {pid}"),
        }
    }
}

/// Who may be at the other end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Peers {
    /// Processes of this process's user.
    #[default]
    SameUser,
    /// Processes of these users.
    Users(Vec<u32>),
    /// Anybody who can reach the socket.
    Anyone,
}

impl Peers {
    pub(crate) fn check(&self, peer: Peer) -> Result<()> {
        let allowed = match self {
            Peers::SameUser => peer.uid == my_uid(),
            Peers::Users(users) => users.contains(&peer.uid),
            Peers::Anyone => true,
        };
        if allowed {
            return Ok(());
        }
        Err(Error::Refused(format!("{peer} is of user {}, who is not allowed here", peer.uid)))
    }
}

/// This process's effective user.
pub(crate) fn my_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}
