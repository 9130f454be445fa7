//! Limits of the process, and the container around it.

use onebuf::core::error::human_bytes;
use rustix::process::{Resource, getrlimit};

use super::Check;
use crate::system::signs;

/// Imports of host memory are counted against the limit by some drivers.
const FEW_LOCKED_BYTES: u64 = 1 << 20;
/// Each exported buffer, stream and device holds descriptors.
const FEW_FILES: u64 = 256;

/// Checks of limits and container.
pub(super) fn checks() -> Vec<Check> {
    vec![
        memlock(getrlimit(Resource::Memlock).current),
        files(getrlimit(Resource::Nofile).current),
        container(),
    ]
}

fn memlock(limit: Option<u64>) -> Check {
    const ID: &str = "memlock";
    let Some(limit) = limit else { return Check::ok(ID, "locked memory is not limited") };
    let finding = format!("at most {} of locked memory", human_bytes(limit));
    let evidence = format!("RLIMIT_MEMLOCK = {limit}");
    if limit >= FEW_LOCKED_BYTES {
        return Check::ok(ID, finding).because(evidence);
    }
    Check::warn(ID, format!("{finding}: a driver may refuse to use the program's own memory (host-import)"))
        .because(evidence)
        .remedy("ulimit -l unlimited; in a container: docker run --ulimit memlock=-1")
}

fn files(limit: Option<u64>) -> Check {
    const ID: &str = "open-files";
    let Some(limit) = limit else { return Check::ok(ID, "open files are not limited") };
    let finding = format!("at most {limit} open files");
    let evidence = format!("RLIMIT_NOFILE = {limit}");
    if limit >= FEW_FILES {
        return Check::ok(ID, finding).because(evidence);
    }
    Check::warn(ID, format!("{finding}: few buffers can be shared with other processes"))
        .because(evidence)
        .remedy("ulimit -n 4096; in a container: docker run --ulimit nofile=4096")
}

fn container() -> Check {
    const ID: &str = "container";
    let signs = signs();
    if signs.is_empty() {
        return Check::ok(ID, "no container and no virtual machine shows");
    }
    let names: Vec<&str> = signs.iter().map(|sign| sign.name).collect();
    let finding = names.join(", ");
    let check = if names.contains(&"gvisor") {
        Check::warn(ID, format!("{finding}: gVisor passes no GPU through but NVIDIA's, and that in part"))
            .remedy("run where GPUs are needed with another runtime (docker run --runtime runc)")
    } else {
        Check::ok(ID, finding)
    };
    signs.into_iter().fold(check, |check, sign| check.because(format!("{}: {}", sign.name, sign.evidence)))
}

#[cfg(test)]
mod tests {
    use super::super::Status;
    use super::*;

    #[test]
    fn small_limits_are_warned_of() {
        assert_eq!(memlock(None).status, Status::Ok);
        assert_eq!(memlock(Some(8 << 20)).status, Status::Ok);
        let small = memlock(Some(64 << 10));
        assert_eq!(small.status, Status::Warn);
        assert!(small.remedy.is_some_and(|remedy| remedy.contains("ulimit -l")));
        assert_eq!(files(Some(64)).status, Status::Warn);
        assert_eq!(files(Some(1024)).status, Status::Ok);
    }
}
