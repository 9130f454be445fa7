//! What stands between a program and NVIDIA's GPUs beside a missing library: versions that do not fit, devices that are
//! hidden, shared or reserved, containers and virtual machines.
//!
//! What the machine says is gathered first; the checks are pure functions of it.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::{Check, Status};
use crate::system::signs;

/// How long `nvidia-smi` may take.
const LIMIT: Duration = Duration::from_secs(10);

/// What the machine says.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    /// The CUDA that the driver serves, major and minor.
    pub(super) serves: Option<(u32, u32)>,
    /// The version of the compiler.
    pub(super) compiles: Option<(u32, u32)>,
    /// A GPU is in the machine, whether or not its driver is.
    pub(super) hardware: bool,
    /// Values of variables, where they are set.
    visible_devices: Option<String>,
    capabilities: Option<String>,
    /// In a container, or some other box.
    contained: bool,
    /// In the Windows Subsystem for Linux.
    wsl: bool,
    /// The kernel module runs.
    module: bool,
    has_ctl_node: bool,
    has_uvm_node: bool,
    /// Where an MPS server listens.
    mps: Option<String>,
    /// What `nvidia-smi` says of each GPU; `None` where it says nothing.
    cards: Option<Vec<Card>>,
}

/// One GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Card {
    name: String,
    uuid: String,
    compute_mode: String,
    mig: String,
}

impl Facts {
    /// What this machine says.
    pub(super) fn gather(serves: Option<u32>, compiles: Option<(i32, i32)>, hardware: bool) -> Facts {
        let exists = |path: &str| Path::new(path).exists();
        let variable = |name: &str| std::env::var(name).ok();
        let pipe = variable("CUDA_MPS_PIPE_DIRECTORY").unwrap_or_else(|| "/tmp/nvidia-mps".into());
        Facts {
            serves: serves.map(|number| (number / 1000, number % 1000 / 10)),
            compiles: compiles.map(|(major, minor)| (major.max(0) as u32, minor.max(0) as u32)),
            hardware,
            visible_devices: variable("CUDA_VISIBLE_DEVICES"),
            capabilities: variable("NVIDIA_DRIVER_CAPABILITIES"),
            contained: !signs().is_empty(),
            wsl: exists("/dev/dxg"),
            module: exists("/proc/driver/nvidia/version"),
            has_ctl_node: exists("/dev/nvidiactl"),
            has_uvm_node: exists("/dev/nvidia-uvm"),
            mps: Path::new(&pipe).join("control").exists().then_some(pipe),
            cards: if serves.is_some() { smi().map(|text| cards(&text)) } else { None },
        }
    }
}

/// Asks `nvidia-smi` for what the driver's library says only of devices that may be opened.
fn smi() -> Option<String> {
    let query = "--query-gpu=name,uuid,compute_mode,mig.mode.current";
    let mut child = Command::new("nvidia-smi")
        .args([query, "--format=csv,noheader"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let start = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => break,
            Ok(None) if start.elapsed() < LIMIT => std::thread::sleep(Duration::from_millis(5)),
            _ => {
                let _ = child.kill();
                let _ = child.wait();
                return None;
            }
        }
    }
    let mut text = String::new();
    // A line a GPU: it fits the pipe, so the process did not wait for a reader.
    child.stdout?.read_to_string(&mut text).ok()?;
    Some(text)
}

fn cards(text: &str) -> Vec<Card> {
    text.lines()
        .filter_map(|line| {
            let mut fields = line.split(',').map(|field| field.trim().to_owned());
            Some(Card {
                name: fields.next()?,
                uuid: fields.next()?,
                compute_mode: fields.next()?,
                mig: fields.next()?,
            })
        })
        .collect()
}

/// The checks. None on a machine that has nothing of NVIDIA's.
pub(super) fn checks(facts: &Facts) -> Vec<Check> {
    if facts.serves.is_none() && !facts.hardware && !facts.module {
        return Vec::new();
    }
    let mut checks = vec![versions(facts)];
    checks.extend(visible(facts));
    checks.extend(nodes(facts));
    checks.extend(capabilities(facts));
    checks.extend(wsl(facts));
    checks.extend(mps(facts));
    for (index, card) in facts.cards.iter().flatten().enumerate() {
        checks.extend(compute_mode(index, card));
        checks.extend(mig(index, card));
    }
    checks
}

/// Whether what the compiler makes can be loaded by the driver.
fn versions(facts: &Facts) -> Check {
    const ID: &str = "cuda-versions";
    let text = |(major, minor): (u32, u32)| format!("{major}.{minor}");
    match (facts.serves, facts.compiles) {
        (None, _) => Check::new(ID, Status::Warn, "without the driver's library, whether versions fit is not known"),
        (Some(serves), None) => Check::warn(
            ID,
            format!("the driver serves CUDA {}, and there is no NVRTC: only kernels in the cache run", text(serves)),
        )
        .remedy(format!(
            "pip install nvidia-cuda-nvrtc, or on Debian and Ubuntu with NVIDIA's repository: apt-get install \
             cuda-nvrtc-{}-{}; ONEBUF_NVRTC names a library that is elsewhere",
            serves.0, serves.1
        )),
        (Some(serves), Some(compiles)) if compiles.0 > serves.0 => Check::warn(
            ID,
            format!("NVRTC {} makes code that a driver for CUDA {} does not load", text(compiles), text(serves)),
        )
        .remedy(format!("install an NVRTC {}.x, or a newer driver", serves.0)),
        (Some(serves), Some(compiles)) => {
            let check =
                Check::ok(ID, format!("NVRTC {} fits a driver for CUDA {}", text(compiles), text(serves)));
            match compiles > serves {
                true => check.because("newer by a minor version, which drivers of the same major version take"),
                false => check,
            }
        }
    }
}

/// What `CUDA_VISIBLE_DEVICES` hides.
fn visible(facts: &Facts) -> Option<Check> {
    const ID: &str = "cuda-visible";
    let list = facts.visible_devices.as_ref()?;
    let evidence = format!("CUDA_VISIBLE_DEVICES is \"{list}\"");
    let remedy = "unset it, or name GPUs by number or by the UUIDs of `nvidia-smi -L`";
    let count = facts.cards.as_ref().map(Vec::len);
    // The list ends, without an error, at the first entry that names nothing.
    let names = |entry: &str| match entry.parse::<i64>() {
        Ok(number) => number >= 0 && count.is_none_or(|count| (number as usize) < count),
        Err(_) if entry.starts_with("MIG-") => true,
        Err(_) => match &facts.cards {
            Some(cards) => entry.starts_with("GPU-") && cards.iter().any(|card| card.uuid.starts_with(entry)),
            None => entry.starts_with("GPU-"),
        },
    };
    let entries: Vec<&str> = list.split(',').map(str::trim).collect();
    let good = entries.iter().take_while(|entry| names(entry)).count();
    Some(match (good, entries.get(good)) {
        (0, _) => Check::warn(ID, "every GPU is hidden from CUDA").because(evidence).remedy(remedy),
        (_, None) => {
            Check::ok(ID, format!("{good} GPU(s) are shown to CUDA, as cuda:0 and on")).because(evidence)
        }
        (_, Some(bad)) => Check::warn(
            ID,
            format!(
                "{good} GPU(s) are shown to CUDA: \"{bad}\" names none, and what follows it is not looked at"
            ),
        )
        .because(evidence)
        .remedy(remedy),
    })
}

/// Nodes that the library needs and does not see.
fn nodes(facts: &Facts) -> Option<Check> {
    const ID: &str = "cuda-nodes";
    if facts.wsl || facts.serves.is_none() && !facts.module {
        return None;
    }
    let toolkit = "in a container, start it by the NVIDIA container toolkit: docker run --gpus all (or --device nvidia.com/gpu=all)";
    if !facts.has_ctl_node {
        let what = if facts.contained {
            "the container does not show /dev/nvidiactl"
        } else {
            "there is no /dev/nvidiactl"
        };
        let check =
            Check::warn(ID, what).remedy(if facts.contained { toolkit } else { "sudo nvidia-modprobe" });
        return Some(if facts.module {
            check.because("/proc/driver/nvidia/version: the kernel module runs")
        } else {
            check
        });
    }
    if !facts.has_uvm_node {
        return Some(
            Check::warn(ID, "there is no /dev/nvidia-uvm, without which CUDA does not start")
                .remedy(format!("sudo nvidia-modprobe -u -c 0; {toolkit}")),
        );
    }
    None
}

/// What the container toolkit was told to bring in.
fn capabilities(facts: &Facts) -> Option<Check> {
    const ID: &str = "cuda-container";
    let list = facts.capabilities.as_ref()?;
    let has = |name: &str| list.split(',').map(str::trim).any(|one| one == name || one == "all");
    let evidence = format!("NVIDIA_DRIVER_CAPABILITIES is \"{list}\"");
    let remedy = "start it with NVIDIA_DRIVER_CAPABILITIES=compute,utility,graphics, or all";
    let lacks = |name: &str, what: &str| {
        Some(
            Check::warn(ID, format!("the container was made without `{name}`: {what}"))
                .because(evidence.clone())
                .remedy(remedy),
        )
    };
    if !has("compute") {
        return lacks("compute", "CUDA is not in it");
    }
    if !has("graphics") && !has("display") {
        return lacks("graphics", "CUDA is in it, and NVIDIA's Vulkan driver is not");
    }
    Some(Check::ok(ID, "the container has what CUDA and Vulkan need").because(evidence))
}

fn wsl(facts: &Facts) -> Option<Check> {
    facts.wsl.then(|| {
        Check::warn(
            "cuda-wsl",
            "under WSL2 the CPU may touch no unified memory while a kernel runs, and exports of memory are advertised and fail",
        )
        .because("/dev/dxg is here")
        .remedy("use page-locked memory (host-mapped), which has neither limit")
    })
}

fn mps(facts: &Facts) -> Option<Check> {
    let pipe = facts.mps.as_ref()?;
    Some(
        Check::ok("cuda-mps", "an MPS server shares the GPUs: a kernel that faults ends every client's work")
            .because(format!("{pipe}/control is here")),
    )
}

fn compute_mode(index: usize, card: &Card) -> Option<Check> {
    const ID: &str = "cuda-compute-mode";
    let evidence = format!("GPU {index}, {}: {}", card.name, card.compute_mode);
    let remedy = format!("sudo nvidia-smi -i {index} -c DEFAULT");
    match card.compute_mode.as_str() {
        "Default" | "[N/A]" | "" => None,
        "Prohibited" => {
            Some(Check::warn(ID, "its compute mode lets no program use it").because(evidence).remedy(remedy))
        }
        _ => Some(
            Check::warn(
                ID,
                "its compute mode lets one process use it at a time: no buffer can be shared with another",
            )
            .because(evidence)
            .remedy(remedy),
        ),
    }
}

fn mig(index: usize, card: &Card) -> Option<Check> {
    (card.mig == "Enabled").then(|| {
        Check::ok(
            "cuda-mig",
            format!("GPU {index} is split into slices (MIG); a process sees one, with its own memory, and no peers; its memory is shared only by processes on the same slice"),
        )
        .because(format!("{}, {}", card.name, card.uuid))
        .remedy("CUDA_VISIBLE_DEVICES=MIG-... chooses one; `nvidia-smi -L` lists them")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card(compute_mode: &str, mig: &str) -> Card {
        let (name, uuid) = ("NVIDIA H200".into(), "GPU-0a1b2c3d-0000".into());
        Card { name, uuid, compute_mode: compute_mode.into(), mig: mig.into() }
    }

    /// A machine where all is well.
    fn good() -> Facts {
        Facts {
            serves: Some((13, 0)),
            compiles: Some((13, 0)),
            hardware: true,
            module: true,
            has_ctl_node: true,
            has_uvm_node: true,
            cards: Some(vec![card("Default", "Disabled")]),
            ..Facts::default()
        }
    }

    /// The status, the finding and the remedy of the check with this id.
    fn of(facts: &Facts, id: &str) -> Option<(Status, String, String)> {
        let check = checks(facts).into_iter().find(|check| check.id == id)?;
        Some((check.status, check.finding, check.remedy.unwrap_or_default()))
    }

    #[track_caller]
    fn warns(facts: Facts, id: &str, finding: &str, remedy: &str) {
        let (status, found, cure) = of(&facts, id).expect(id);
        assert_eq!(status, Status::Warn, "{found}");
        assert!(found.contains(finding), "{found}");
        assert!(cure.contains(remedy), "{cure}");
    }

    #[test]
    fn a_machine_where_all_is_well_has_no_warning() {
        assert!(checks(&good()).iter().all(|check| check.status == Status::Ok));
        assert!(checks(&Facts::default()).is_empty(), "a machine without NVIDIA's hardware is left in peace");
    }

    #[test]
    fn compiler_and_driver_must_fit() {
        warns(Facts { serves: Some((12, 4)), ..good() }, "cuda-versions", "NVRTC 13.0", "NVRTC 12.x");
        warns(Facts { compiles: None, ..good() }, "cuda-versions", "no NVRTC", "cuda-nvrtc-13-0");
        warns(Facts { serves: None, ..good() }, "cuda-versions", "not known", "");
        for compiles in [(12, 9), (13, 0), (13, 4)] {
            let (status, ..) = of(&Facts { compiles: Some(compiles), ..good() }, "cuda-versions").unwrap();
            assert_eq!(status, Status::Ok, "{compiles:?}");
        }
    }

    #[test]
    fn hidden_devices_are_counted() {
        let with = |list: &str| Facts { visible_devices: Some(list.into()), ..good() };
        for list in ["", "-1", "7", "nonsense", "GPU-ffff", "-1,0"] {
            warns(with(list), "cuda-visible", "every GPU is hidden", "unset it");
        }
        for list in ["0", "GPU-0a1b", "MIG-1234", " 0 "] {
            assert_eq!(of(&with(list), "cuda-visible").unwrap().0, Status::Ok, "{list}");
        }
        warns(with("0,5,0"), "cuda-visible", "1 GPU(s) are shown to CUDA: \"5\"", "nvidia-smi -L");
        assert_eq!(of(&good(), "cuda-visible"), None);
        // Without nvidia-smi any number may be one.
        let blind = Facts { cards: None, ..with("5") };
        assert_eq!(of(&blind, "cuda-visible").unwrap().0, Status::Ok);
    }

    #[test]
    fn nodes_and_containers_are_explained() {
        let inside = Facts { contained: true, ..good() };
        let no_ctl = Facts { has_ctl_node: false, ..inside.clone() };
        warns(no_ctl.clone(), "cuda-nodes", "the container does not show", "container toolkit");
        warns(
            Facts { contained: false, ..no_ctl },
            "cuda-nodes",
            "there is no /dev/nvidiactl",
            "nvidia-modprobe",
        );
        warns(Facts { has_uvm_node: false, ..good() }, "cuda-nodes", "/dev/nvidia-uvm", "nvidia-modprobe -u");
        let told = |list: &str| Facts { capabilities: Some(list.into()), ..inside.clone() };
        warns(told("utility,graphics"), "cuda-container", "`compute`", "compute,utility,graphics");
        warns(told("compute,utility"), "cuda-container", "Vulkan driver is not", "graphics");
        for list in ["all", "compute,utility,graphics", "compute, display"] {
            assert_eq!(of(&told(list), "cuda-container").unwrap().0, Status::Ok, "{list}");
        }
        let wsl = Facts { wsl: true, has_ctl_node: false, has_uvm_node: false, ..good() };
        assert_eq!(of(&wsl, "cuda-nodes"), None, "WSL2 has none of them");
        warns(wsl, "cuda-wsl", "no unified memory while a kernel runs", "page-locked");
    }

    #[test]
    fn shared_reserved_and_split_gpus_are_named() {
        let with =
            |compute_mode: &str, mig: &str| Facts { cards: Some(vec![card(compute_mode, mig)]), ..good() };
        warns(with("Prohibited", "Disabled"), "cuda-compute-mode", "no program", "-c DEFAULT");
        warns(with("Exclusive_Process", "Disabled"), "cuda-compute-mode", "one process", "-c DEFAULT");
        let split = of(&with("Default", "Enabled"), "cuda-mig").unwrap();
        assert!(split.0 == Status::Ok && split.2.contains("MIG-"), "{split:?}");
        assert_eq!(of(&with("Default", "[N/A]"), "cuda-mig"), None);
        let served = Facts { mps: Some("/tmp/nvidia-mps".into()), ..good() };
        assert!(of(&served, "cuda-mps").unwrap().1.contains("MPS server"));
    }

    #[test]
    fn what_nvidia_smi_prints_is_read() {
        let text = "NVIDIA H200, GPU-0a1b, Default, Disabled\nNVIDIA A100, GPU-2c3d, Exclusive_Process, Enabled\nbroken\n";
        let cards = cards(text);
        assert_eq!(cards.len(), 2);
        assert_eq!((cards[1].uuid.as_str(), cards[1].mig.as_str()), ("GPU-2c3d", "Enabled"));
        assert!(super::cards("").is_empty());
    }
}
