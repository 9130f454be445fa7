//! Signs of a container, a sandbox or a virtual machine: what they hide decides which devices and files a driver sees.

use std::fs;
use std::path::Path;

/// One sign, and where it was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sign {
    /// What it is a sign of.
    pub(crate) name: &'static str,
    /// The file or variable, with what it holds.
    pub(crate) evidence: String,
}

/// The signs that this process sees, each name once.
pub(crate) fn signs() -> Vec<Sign> {
    signs_in(Path::new("/"), &|name| std::env::var(name).ok())
}

/// The signs under `root` and in an environment.
fn signs_in(root: &Path, variable: &dyn Fn(&str) -> Option<String>) -> Vec<Sign> {
    let mut signs: Vec<Sign> = Vec::new();
    let mut add = |name, evidence: String| {
        if !signs.iter().any(|sign| sign.name == name) {
            signs.push(Sign { name, evidence });
        }
    };
    let exists = |path: &str| root.join(path).exists().then(|| format!("/{path} exists"));
    let text = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();

    for (name, path) in [
        ("docker", ".dockerenv"),
        ("podman", "run/.containerenv"),
        ("kubernetes", "var/run/secrets/kubernetes.io"),
        ("flatpak", ".flatpak-info"),
        ("wsl", "proc/sys/fs/binfmt_misc/WSLInterop"),
        ("wsl", "dev/dxg"),
    ] {
        if let Some(evidence) = exists(path) {
            add(name, evidence);
        }
    }
    if variable("KUBERNETES_SERVICE_HOST").is_some() {
        add("kubernetes", "KUBERNETES_SERVICE_HOST is set".into());
    }
    if variable("SNAP").is_some() {
        add("snap", "SNAP is set".into());
    }
    // systemd-nspawn, LXC and podman set it for the first process of a container.
    if let Some(kind) = variable("container").filter(|kind| !kind.is_empty()) {
        add("container", format!("container={kind}"));
    }
    let cgroup = text("proc/1/cgroup");
    for (name, mark) in [
        ("docker", "docker"),
        ("kubernetes", "kubepods"),
        ("containerd", "containerd"),
        ("podman", "libpod"),
        ("lxc", "lxc"),
    ] {
        if cgroup.contains(mark) {
            add(name, format!("/proc/1/cgroup names {mark}"));
        }
    }
    let version = text("proc/version");
    if version.to_lowercase().contains("microsoft") {
        add("wsl", format!("/proc/version: {}", version.trim()));
    }
    // gVisor answers with this one date, whatever its release.
    if version.contains("Sun Jan 10 15:06:54 PST 2016") {
        add("gvisor", format!("/proc/version: {}", version.trim()));
    }
    if text("proc/cmdline").contains("virtio_mmio.device=") {
        add("microvm", "/proc/cmdline has virtio_mmio.device= (Firecracker and its like)".into());
    }
    let vendor = text("sys/class/dmi/id/sys_vendor");
    let hypervisor = text("proc/cpuinfo").lines().any(|line| {
        line.starts_with("flags") && line.split_ascii_whitespace().any(|flag| flag == "hypervisor")
    });
    if hypervisor {
        let vendor = vendor.trim();
        let by = if vendor.is_empty() { String::new() } else { format!(", sys_vendor is {vendor}") };
        add("virtual-machine", format!("/proc/cpuinfo has the flag hypervisor{by}"));
    }
    signs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(files: &[(&str, &str)], variables: &[(&str, &str)]) -> Vec<&'static str> {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let variable = |name: &str| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        };
        signs_in(root.path(), &variable).into_iter().map(|sign| sign.name).collect()
    }

    #[test]
    fn a_plain_machine_shows_nothing() {
        let files = [
            ("proc/1/cgroup", "0::/init.scope\n"),
            ("proc/version", "Linux version 6.1.0-18-amd64"),
            ("proc/cpuinfo", "flags\t: fpu sse2\n"),
        ];
        assert_eq!(machine(&files, &[]), Vec::<&str>::new());
        assert_eq!(machine(&[], &[("container", "")]), Vec::<&str>::new());
    }

    #[test]
    fn each_kind_is_named_once() {
        assert_eq!(machine(&[(".dockerenv", ""), ("proc/1/cgroup", "1:cpu:/docker/ab\n")], &[]), ["docker"]);
        assert_eq!(
            machine(&[("run/.containerenv", "")], &[("container", "podman")]),
            ["podman", "container"]
        );
        assert_eq!(machine(&[], &[("KUBERNETES_SERVICE_HOST", "10.0.0.1")]), ["kubernetes"]);
        let wsl = [("proc/version", "Linux version 5.15.90.1-microsoft-standard-WSL2"), ("dev/dxg", "")];
        assert_eq!(machine(&wsl, &[]), ["wsl"]);
        let gvisor = "Linux version 4.4.0 #1 SMP Sun Jan 10 15:06:54 PST 2016";
        assert_eq!(machine(&[("proc/version", gvisor)], &[]), ["gvisor"]);
        let microvm = [
            ("proc/cmdline", "console=ttyS0 pci=off virtio_mmio.device=4K@0xd0000000:5"),
            ("proc/cpuinfo", "flags\t\t: fpu vme hypervisor lahf_lm\n"),
        ];
        assert_eq!(machine(&microvm, &[]), ["microvm", "virtual-machine"]);
    }
}
