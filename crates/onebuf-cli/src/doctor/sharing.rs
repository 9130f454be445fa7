//! What forbids sharing memory with other processes, or with another API on the same GPU: namespaces, sandboxes, missing
//! extensions, devices that no two sides know by one name.
//!
//! What the machine says is gathered first; the checks are pure functions of it.

use std::fs;
use std::path::Path;

use onebuf::DeviceKind;
use onebuf::core::error::human_bytes;
use onebuf::ipc::{Channel, Memfd};

use super::Check;

/// The numbers of the first namespaces of a system, which no other one ever has (`PROC_PID_INIT_INO` and its like).
const FIRST: [(Space, &str); 3] =
    [(Space::Pid, "pid:[4026531836]"), (Space::Ipc, "ipc:[4026531839]"), (Space::User, "user:[4026531837]")];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Space {
    Pid,
    Ipc,
    User,
}

/// What the machine says.
#[derive(Clone, Debug, Default)]
struct Facts {
    /// The namespaces of its own that this process is in, each as the kernel names it.
    own: Vec<(Space, String)>,
    /// How users are mapped, where they are.
    uid_map: Option<String>,
    /// Who may look into other processes: `kernel.yama.ptrace_scope`.
    ptrace_scope: Option<u8>,
    /// What memfds are refused: `vm.memfd_noexec`.
    memfd_noexec: Option<u8>,
    /// Filters on system calls: 2 for a program of filters.
    seccomp: Option<u8>,
    /// The size of `/dev/shm` in bytes; `None` where it is not there.
    shm_bytes: Option<u64>,
    /// Where WSL shows.
    wsl: Option<String>,
    /// Why no shared memory, or no socket that passes descriptors, can be made.
    memfd: Option<String>,
    socket: Option<String>,
}

impl Facts {
    /// What the files under `root` say.
    fn read(root: &Path) -> Facts {
        let text = |path: &str| fs::read_to_string(root.join(path)).ok().map(|text| text.trim().to_owned());
        let number = |path: &str| text(path)?.parse().ok();
        let own = FIRST.into_iter().filter_map(|(space, first)| {
            let file = root.join("proc/self/ns").join(first.split(':').next()?);
            let name = fs::read_link(file).ok()?.to_string_lossy().into_owned();
            (name != first).then_some((space, name))
        });
        let status = text("proc/self/status").unwrap_or_default();
        let seccomp = status.lines().find_map(|line| line.strip_prefix("Seccomp:")?.trim().parse().ok());
        let version = text("proc/version").unwrap_or_default();
        let wsl = if root.join("dev/dxg").exists() {
            Some("/dev/dxg is here".to_owned())
        } else {
            version.to_lowercase().contains("microsoft").then(|| format!("/proc/version: {version}"))
        };
        let uid_map = text("proc/self/uid_map");
        let is_mapped = |map: &String| map.split_whitespace().collect::<Vec<_>>() != ["0", "0", "4294967295"];
        Facts {
            own: own.collect(),
            uid_map: uid_map.filter(is_mapped),
            ptrace_scope: number("proc/sys/kernel/yama/ptrace_scope"),
            memfd_noexec: number("proc/sys/vm/memfd_noexec"),
            seccomp,
            shm_bytes: None,
            wsl,
            memfd: None,
            socket: None,
        }
    }

    /// What this machine says, and lets this process do.
    fn gather() -> Facts {
        let shm = rustix::fs::statvfs("/dev/shm").ok();
        Facts {
            shm_bytes: shm.map(|shm| shm.f_blocks.saturating_mul(shm.f_frsize)),
            memfd: Memfd::create(1, 1).and_then(|memfd| memfd.map()).err().map(|why| why.to_string()),
            socket: Channel::socket_pair().err().map(|why| why.to_string()),
            ..Facts::read(Path::new("/"))
        }
    }
}

/// What a device is to those who share its memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Party {
    pub(super) id: String,
    pub(super) kind: DeviceKind,
    pub(super) driver: String,
    /// The hardware's identity.
    pub(super) uuid: Option<String>,
    /// By which ways its memory leaves a process.
    pub(super) ways: Vec<String>,
    /// It takes the program's own pages, and so memfds.
    pub(super) imports: bool,
}

impl Party {
    fn is_cuda(&self) -> bool {
        self.id.starts_with("cuda:")
    }
}

/// The checks of the machine and of its usable devices.
pub(super) fn checks(parties: &[Party]) -> Vec<Check> {
    let facts = Facts::gather();
    let mut checks = machine(&facts);
    checks.extend(devices(parties));
    checks.extend(apis(parties, std::env::var("CUDA_VISIBLE_DEVICES").ok()));
    checks
}

fn machine(facts: &Facts) -> Vec<Check> {
    let mut checks = vec![memory(facts), socket(facts)];
    checks.extend(facts.own.iter().map(|(space, name)| namespace(*space, name, facts.uid_map.as_deref())));
    checks.extend(ptrace(facts));
    checks.push(shm(facts));
    checks.extend(wsl(facts));
    checks
}

fn filters(facts: &Facts) -> Option<String> {
    (facts.seccomp == Some(2))
        .then(|| "Seccomp: 2 in /proc/self/status: system calls are filtered".to_owned())
}

fn memory(facts: &Facts) -> Check {
    const ID: &str = "sharing-memory";
    let Some(why) = &facts.memfd else { return Check::ok(ID, "memory of the CPU can be shared (memfd)") };
    let check =
        Check::warn(ID, "memory of the CPU cannot be shared: no memfd route, no rings").because(why.as_str());
    match (facts.memfd_noexec, filters(facts)) {
        (Some(2), _) => check
            .because("vm.memfd_noexec = 2: memfds that could be executed are refused")
            .remedy("sudo sysctl vm.memfd_noexec=1"),
        (_, Some(filters)) => check.because(filters).remedy(
            "allow memfd_create, ftruncate, fallocate and fcntl in the sandbox's profile; in a container: docker run --security-opt seccomp=PROFILE",
        ),
        _ => check.remedy("see the reason above; a memory limit (cgroup) counts shared memory too"),
    }
}

fn socket(facts: &Facts) -> Check {
    const ID: &str = "sharing-sockets";
    let Some(why) = &facts.socket else {
        return Check::ok(ID, "descriptors pass between processes (Unix sockets)");
    };
    let check = Check::warn(ID, "no descriptor passes to another process: nothing can be shared")
        .because(why.as_str());
    filters(facts)
        .into_iter()
        .fold(check, Check::because)
        .remedy("allow Unix sockets of kind SOCK_SEQPACKET in the sandbox's profile")
}

fn namespace(space: Space, name: &str, uid_map: Option<&str>) -> Check {
    const ID: &str = "sharing-namespace";
    match space {
        Space::Pid => Check::ok(
            ID,
            "processes outside are not seen by their ids: shares over a socket pass, and legacy CUDA IPC handles do not",
        )
        .because(format!("{name}: a PID namespace of its own"))
        .remedy("for CUDA IPC: docker run --pid=host, or --pid=container:NAME"),
        Space::Ipc => Check::ok(
            ID,
            "System V shared memory and /dev/shm are apart from those outside: shares over a socket pass, and legacy CUDA IPC handles do not",
        )
        .because(format!("{name}: an IPC namespace of its own"))
        .remedy("for CUDA IPC: docker run --ipc=host, or --ipc=container:NAME"),
        Space::User => {
            let check = Check::warn(
                ID,
                "users outside are shown by their numbers in its map, or as 65534: a peer there may not be of this user, and is refused then",
            )
            .because(format!("{name}: a user namespace of its own"));
            let map = uid_map.map(|map| format!("/proc/self/uid_map: {}", map.split_whitespace().collect::<Vec<_>>().join(" ")));
            map.into_iter()
                .fold(check, Check::because)
                .remedy("name the peer's number here in `Peers::Users` (65534 for a user that is not mapped), or run both in one namespace")
        }
    }
}

fn ptrace(facts: &Facts) -> Option<Check> {
    const ID: &str = "sharing-ptrace";
    let scope = facts.ptrace_scope?;
    let evidence = format!("kernel.yama.ptrace_scope = {scope}");
    let who = match scope {
        0 => {
            return Some(
                Check::ok(ID, "libraries may fetch descriptors of the same user's processes (pidfd_getfd)")
                    .because(evidence),
            );
        }
        1 => "only from their descendants",
        2 => "only as an administrator (CAP_SYS_PTRACE)",
        _ => "not at all",
    };
    // onebuf is handed its descriptors, so nothing of its own is missing.
    Some(
        Check::ok(ID, format!("libraries may fetch descriptors of other processes (pidfd_getfd) {who}; onebuf does not"))
            .because(evidence)
            .remedy("where such a library says EPERM: sudo sysctl kernel.yama.ptrace_scope=0, or prctl(PR_SET_PTRACER) in the process that has them"),
    )
}

/// What Docker gives where nothing is said.
const LITTLE_SHM_BYTES: u64 = 64 << 20;

fn shm(facts: &Facts) -> Check {
    const ID: &str = "sharing-shm";
    match facts.shm_bytes {
        None => Check::ok(
            ID,
            "/dev/shm is not here: POSIX shared memory fails in other libraries; onebuf uses memfds",
        )
        .remedy("mount -t tmpfs tmpfs /dev/shm"),
        Some(bytes) if bytes <= LITTLE_SHM_BYTES => Check::ok(
            ID,
            format!(
                "/dev/shm has {}: little for other libraries (NCCL, data loaders); onebuf uses memfds",
                human_bytes(bytes)
            ),
        )
        .remedy("docker run --shm-size=8g, or --ipc=host"),
        Some(bytes) => Check::ok(ID, format!("/dev/shm has {}", human_bytes(bytes))),
    }
}

fn wsl(facts: &Facts) -> Option<Check> {
    let sign = facts.wsl.as_ref()?;
    Some(
        Check::warn(
            "sharing-wsl",
            "under WSL2 the memory of a GPU does not leave a process: exports are advertised and fail",
        )
        .because(sign.as_str())
        .remedy("share memory of the CPU (`.ways([HandleKind::Memfd])`), or run under Linux itself"),
    )
}

/// Which devices have memory that another process can open, and which name it has there.
fn devices(parties: &[Party]) -> Vec<Check> {
    const ID: &str = "sharing-device";
    let mut checks = Vec::new();
    for party in parties {
        let Party { id, driver, .. } = party;
        let extensions = if party.is_cuda() {
            "cuMemCreate with POSIX descriptors"
        } else {
            "VK_KHR_external_memory_fd, VK_EXT_external_memory_dma_buf"
        };
        let pages =
            if party.is_cuda() { "page-locked memory of the program" } else { "VK_EXT_external_memory_host" };
        let check = match (party.ways.is_empty(), party.imports) {
            (false, true) => Check::ok(
                ID,
                format!(
                    "{id}: its memory can be shared as {}, and the CPU's as memfd",
                    party.ways.join(", ")
                ),
            ),
            (false, false) => Check::ok(
                ID,
                format!("{id}: its memory can be shared as {}, and the CPU's cannot", party.ways.join(", ")),
            )
            .because(format!("{driver} has no {pages}")),
            (true, true) => Check::warn(
                ID,
                format!("{id}: its own memory cannot be shared, and the CPU's can, as memfd"),
            )
            .because(format!("{driver} has no {extensions}"))
            .remedy(
                "install a newer driver; build buffers for the memfd route: `.ways([HandleKind::Memfd])`",
            ),
            (true, false) => {
                Check::warn(ID, format!("{id}: no buffer of it can be shared with another process"))
                    .because(format!("{driver} has no {extensions}, and no {pages}"))
                    .remedy("install a newer driver")
            }
        };
        checks.push(check);
        if party.uuid.is_none() && party.kind == DeviceKind::Software {
            checks.push(
                Check::ok(ID, format!("{id}: a software driver has no identity; both processes must use the same driver and version"))
                    .because(driver.as_str()),
            );
        }
    }
    // Two drivers for one GPU: neither opens the other's descriptors.
    for (at, one) in parties.iter().enumerate() {
        let same =
            |two: &&Party| two.uuid.is_some() && two.uuid == one.uuid && two.is_cuda() == one.is_cuda();
        if let Some(two) = parties[at + 1..].iter().find(same).filter(|two| two.driver != one.driver) {
            checks.push(
                Check::warn(ID, format!("{} and {} are one GPU by two drivers: neither opens the other's opaque-fd", one.id, two.id))
                    .because(format!("{}; {}", one.driver, two.driver))
                    .remedy("name one of them in VK_DRIVER_FILES for both processes; dma-buf and memfd pass between drivers"),
            );
        }
    }
    checks
}

/// GPUs that one of CUDA and Vulkan has and the other has not.
fn apis(parties: &[Party], visible: Option<String>) -> Vec<Check> {
    const ID: &str = "sharing-apis";
    let (cuda, vulkan): (Vec<&Party>, Vec<&Party>) = parties.iter().partition(|party| party.is_cuda());
    let knows = |list: &[&Party], uuid: &Option<String>| {
        uuid.is_some() && list.iter().any(|party| party.uuid == *uuid)
    };
    let mut checks = Vec::new();
    for party in &cuda {
        let uuid = party.uuid.as_deref().unwrap_or("no UUID");
        checks.push(match vulkan.iter().find(|other| other.uuid.is_some() && other.uuid == party.uuid) {
            Some(other) => Check::ok(ID, format!("{} and {} are one GPU", party.id, other.id)).because(uuid),
            None => Check::warn(ID, format!("{} is no device of Vulkan here: the two cannot share its memory", party.id))
                .because(format!("{uuid}, and Vulkan has {}", listed(&vulkan)))
                .remedy("install the Vulkan part of NVIDIA's driver (libGLX_nvidia, nvidia_icd.json); in a container: NVIDIA_DRIVER_CAPABILITIES=all; a MIG slice has none"),
        });
    }
    let nvidia = vulkan.iter().filter(|party| party.driver.to_lowercase().contains("nvidia"));
    for party in nvidia.filter(|party| !cuda.is_empty() && !knows(&cuda, &party.uuid)) {
        let check = Check::warn(
            ID,
            format!("{} is no device of CUDA here: the two cannot share its memory", party.id),
        )
        .because(format!(
            "{}, and CUDA has {}",
            party.uuid.as_deref().unwrap_or("no UUID"),
            listed(&cuda)
        ));
        checks.push(match &visible {
            Some(list) => check
                .because(format!("CUDA_VISIBLE_DEVICES is \"{list}\", which Vulkan does not look at"))
                .remedy("show CUDA that GPU too, or choose the other by its UUID: ONEBUF_DEVICE"),
            None => check.remedy("see cuda-compute-mode and cuda-mig"),
        });
    }
    checks
}

fn listed(parties: &[&Party]) -> String {
    if parties.is_empty() {
        return "none".into();
    }
    let texts =
        parties.iter().map(|party| format!("{} ({})", party.id, party.uuid.as_deref().unwrap_or("no UUID")));
    texts.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::super::Status;
    use super::*;

    fn facts(files: &[(&str, &str)], links: &[(&str, &str)]) -> Facts {
        let root = tempfile::tempdir().unwrap();
        let place = |path: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            path
        };
        files.iter().for_each(|(path, text)| fs::write(place(path), text).unwrap());
        links.iter().for_each(|(path, to)| symlink(to, place(path)).unwrap());
        Facts::read(root.path())
    }

    /// The one check with this id, or `None`.
    fn only<'a>(checks: &'a [Check], id: &str) -> Option<&'a Check> {
        let mut found = checks.iter().filter(|check| check.id == id);
        let first = found.next();
        assert!(found.next().is_none(), "{id} twice");
        first
    }

    #[test]
    fn a_plain_machine_forbids_nothing() {
        let links =
            FIRST.map(|(_, name)| (format!("proc/self/ns/{}", name.split(':').next().unwrap()), name));
        let links: Vec<(&str, &str)> = links.iter().map(|(path, name)| (path.as_str(), *name)).collect();
        let files = [
            ("proc/self/uid_map", "         0          0 4294967295\n"),
            ("proc/sys/kernel/yama/ptrace_scope", "0\n"),
            ("proc/self/status", "Name:\tonebuf\nSeccomp:\t0\n"),
            ("proc/version", "Linux version 6.1.0-18-amd64"),
        ];
        let facts = Facts { shm_bytes: Some(8 << 30), ..facts(&files, &links) };
        assert!(facts.own.is_empty() && facts.uid_map.is_none() && facts.wsl.is_none());
        let checks = machine(&facts);
        assert!(
            checks.iter().all(|check| check.status == Status::Ok && check.remedy.is_none()),
            "{checks:?}"
        );
        assert!(only(&checks, "sharing-namespace").is_none());
        // Files that are not there say nothing.
        assert!(machine(&super::tests::facts(&[], &[])).iter().all(|check| check.status == Status::Ok));
    }

    #[test]
    fn namespaces_are_told_apart() {
        for (kind, says, status) in [
            ("pid", "legacy CUDA IPC", Status::Ok),
            ("ipc", "/dev/shm are apart", Status::Ok),
            ("user", "a peer there may not be of this user", Status::Warn),
        ] {
            let (path, name) = (format!("proc/self/ns/{kind}"), format!("{kind}:[4026532177]"));
            let map = [("proc/self/uid_map", "0 1000 1\n")];
            let checks = machine(&facts(&map, &[(&path, &name)]));
            let check = only(&checks, "sharing-namespace").unwrap();
            assert!(check.finding.contains(says) && check.status == status, "{check:?}");
            assert!(check.evidence[0].contains(&name) && check.remedy.is_some(), "{check:?}");
            assert_eq!(check.evidence.iter().any(|line| line.contains("uid_map: 0 1000 1")), kind == "user");
        }
    }

    #[test]
    fn who_may_fetch_descriptors_is_told() {
        for (scope, says) in [
            ("0", "may fetch descriptors of the same"),
            ("1", "descendants"),
            ("2", "administrator"),
            ("3", "not at all"),
        ] {
            let checks = machine(&facts(&[("proc/sys/kernel/yama/ptrace_scope", scope)], &[]));
            let check = only(&checks, "sharing-ptrace").unwrap();
            assert!(check.finding.contains(says), "{check:?}");
            assert_eq!(check.remedy.is_some(), scope != "0");
        }
    }

    #[test]
    fn what_is_refused_is_told_with_its_filter() {
        let sandbox = facts(&[("proc/self/status", "Seccomp:\t2\n")], &[]);
        let refused = Facts {
            memfd: Some("memfd_create: EPERM".into()),
            socket: Some("socketpair: EPERM".into()),
            ..sandbox
        };
        let checks = machine(&refused);
        for id in ["sharing-memory", "sharing-sockets"] {
            let check = only(&checks, id).unwrap();
            assert_eq!(check.status, Status::Warn);
            assert!(check.evidence.iter().any(|line| line.contains("EPERM")), "{check:?}");
            assert!(check.evidence.iter().any(|line| line.contains("filtered")), "{check:?}");
            assert!(check.remedy.as_ref().unwrap().contains("profile"), "{check:?}");
        }
        let sysctl = facts(&[("proc/sys/vm/memfd_noexec", "2\n")], &[]);
        let checks = machine(&Facts { memfd: Some("memfd_create: EACCES".into()), ..sysctl });
        let check = only(&checks, "sharing-memory").unwrap();
        assert!(check.remedy.as_ref().unwrap().contains("vm.memfd_noexec=1"), "{check:?}");
        let checks = machine(&Facts { memfd: Some("ENOMEM".into()), ..Facts::default() });
        assert!(only(&checks, "sharing-memory").unwrap().remedy.as_ref().unwrap().contains("cgroup"));
    }

    #[test]
    fn little_shared_memory_and_wsl_are_told() {
        for (bytes, remedy) in [(None, "mount"), (Some(64 << 20), "--shm-size")] {
            let checks = machine(&Facts { shm_bytes: bytes, ..Facts::default() });
            assert!(only(&checks, "sharing-shm").unwrap().remedy.as_ref().unwrap().contains(remedy));
        }
        for files in
            [[("dev/dxg", "")], [("proc/version", "Linux version 5.15.90.1-microsoft-standard-WSL2")]]
        {
            let checks = machine(&facts(&files, &[]));
            let check = only(&checks, "sharing-wsl").unwrap();
            assert!(check.status == Status::Warn && check.finding.contains("fail"), "{check:?}");
        }
    }

    fn party(id: &str, driver: &str, uuid: Option<&str>) -> Party {
        Party {
            id: id.into(),
            kind: if uuid.is_some() { DeviceKind::Discrete } else { DeviceKind::Software },
            driver: driver.into(),
            uuid: uuid.map(str::to_owned),
            ways: vec!["opaque-fd".into()],
            imports: true,
        }
    }

    #[test]
    fn devices_say_what_they_lack() {
        let right = party("vulkan:0", "radv", Some("a"));
        for (ways, imports, says, status) in [
            (vec!["opaque-fd".to_owned()], true, "as opaque-fd, and the CPU's as memfd", Status::Ok),
            (vec!["opaque-fd".to_owned()], false, "the CPU's cannot", Status::Ok),
            (vec![], true, "its own memory cannot be shared", Status::Warn),
            (vec![], false, "no buffer of it", Status::Warn),
        ] {
            let checks = devices(&[Party { ways, imports, ..right.clone() }]);
            let check = only(&checks, "sharing-device").unwrap();
            assert!(check.finding.contains(says) && check.status == status, "{check:?}");
            assert_eq!(check.remedy.is_some(), status == Status::Warn);
            let lacks = check.evidence.iter().any(|line| line.contains("radv has no VK_"));
            assert_eq!(lacks, says != "as opaque-fd, and the CPU's as memfd", "{check:?}");
        }
        let checks = devices(&[party("vulkan:0", "llvmpipe", None)]);
        assert!(checks[1].finding.contains("no identity"), "{checks:?}");
        let two = [right, party("vulkan:1", "amdvlk", Some("a")), party("vulkan:2", "amdvlk", Some("b"))];
        let checks = devices(&two);
        assert_eq!(checks.len(), 4);
        assert!(
            checks[3].finding.starts_with("vulkan:0 and vulkan:1 are one GPU by two drivers"),
            "{checks:?}"
        );
    }

    #[test]
    fn gpus_that_one_api_lacks_are_named() {
        let (cuda, vulkan) = (party("cuda:0", "580", Some("a")), party("vulkan:0", "NVIDIA 580", Some("a")));
        let checks = apis(&[cuda.clone(), vulkan.clone()], None);
        assert!(checks.len() == 1 && checks[0].status == Status::Ok, "{checks:?}");
        assert!(apis(std::slice::from_ref(&vulkan), None).is_empty(), "nobody asked for CUDA");

        let checks = apis(&[cuda.clone(), party("vulkan:0", "llvmpipe", None)], None);
        assert!(
            checks.len() == 1 && checks[0].finding.contains("cuda:0 is no device of Vulkan"),
            "{checks:?}"
        );
        assert!(checks[0].evidence[0].contains("vulkan:0 (no UUID)"), "{checks:?}");
        assert!(apis(std::slice::from_ref(&cuda), None)[0].evidence[0].contains("Vulkan has none"));

        let second = party("vulkan:1", "NVIDIA 580", Some("b"));
        for visible in [Some("0".to_owned()), None] {
            let hidden = visible.is_some();
            let checks = apis(&[cuda.clone(), vulkan.clone(), second.clone()], visible);
            assert_eq!(checks.len(), 2);
            assert!(checks[1].finding.starts_with("vulkan:1 is no device of CUDA"), "{checks:?}");
            assert_eq!(checks[1].evidence.iter().any(|line| line.contains("CUDA_VISIBLE_DEVICES")), hidden);
        }
    }
}
