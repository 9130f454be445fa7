//! Compiled pipelines on disk: a second start finds them, two processes share them, and nothing that can happen to the
//! directory or its files costs more than a compilation.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use onebuf::{Device, HostAccess, args};
use onebuf_tests::{kernels, lab, process};

const CACHE: &str = "ONEBUF_CACHE_DIR";
const LIMIT: Duration = Duration::from_secs(120);

/// What a child does: builds a few kernels, runs one, and prints what was in the cache.
fn build_and_run(rounds: u32) {
    lab::on_real_devices(|subject| {
        let device: &Device = &subject.device;
        let mut found = Vec::new();
        for round in 0..rounds {
            for source in [kernels::MIX, kernels::STEP, kernels::SLOW, kernels::INCREMENT] {
                let source = format!("{source}\n// {round}");
                let kernel = device.kernel(&source).unwrap().build().unwrap();
                found.push(kernel.was_cached());
            }
        }
        let kernel = device.kernel(kernels::INCREMENT).unwrap().build().unwrap();
        let data = device.buffer::<u32>(64).host(HostAccess::ReadWrite).zeroed().build().unwrap();
        device.default_stream().unwrap().launch(&kernel, [1, 1, 1], args![data]).unwrap();
        assert_eq!(*data.read().unwrap(), [1; 64]);
        lab::say(&format!("found {found:?}"));
    });
}

fn start(directory: &Path, role: &str) -> process::Finished {
    let finished = process::run_with(role, CACHE, directory, LIMIT);
    finished.expect_success();
    finished
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|e| e == "pipeline" || e == "cubin"))
        .collect()
}

fn is_child() -> bool {
    match process::role().as_deref() {
        Some("many") => build_and_run(10),
        Some(_) => build_and_run(1),
        None => return false,
    }
    true
}

#[test]
fn a_second_start_finds_what_the_first_compiled() {
    if is_child() {
        return;
    }
    lab::alone(|| {
        let directory = tempfile::tempdir().unwrap();
        let cache = directory.path().join("made/when/needed");
        let first = start(&cache, "first");
        assert!(!first.output.contains("Some(true)"), "{}", first.output);
        let kept = files(&cache);
        if kept.is_empty() {
            return lab::say("skipped: no device here gives pipeline data");
        }
        assert_eq!(
            fs::metadata(&cache).unwrap().permissions().mode() & 0o077,
            0,
            "others may read or write it"
        );
        let second = start(&cache, "second");
        // A driver that gives more than a header and can tell says that it found them.
        let real = kept.iter().all(|path| fs::metadata(path).unwrap().len() > 256);
        let tells = second.output.contains("Some(");
        assert!(!real || !tells || second.output.contains("Some(true)"), "{}", second.output);
        assert_eq!(files(&cache).len(), kept.len(), "the second start compiled anew");
    });
}

#[test]
fn damaged_and_foreign_files_cost_a_compilation_alone() {
    if is_child() {
        return;
    }
    lab::alone(|| {
        let directory = tempfile::tempdir().unwrap();
        let cache = directory.path();
        start(cache, "first");
        let kept = files(cache);
        let damage: [&dyn Fn(&Path); 8] = [
            &|path| fs::write(path, b"").unwrap(),
            &|path| fs::write(path, b"onebufP1").unwrap(),
            &|path| {
                let bytes = fs::read(path).unwrap();
                fs::write(path, &bytes[..bytes.len() / 2]).unwrap();
            },
            &|path| {
                let mut bytes = fs::read(path).unwrap();
                let middle = bytes.len() / 2;
                bytes[middle] ^= 0x40;
                fs::write(path, bytes).unwrap();
            },
            &|path| fs::write(path, [0xffu8; 5000]).unwrap(),
            &|path| {
                fs::remove_file(path).unwrap();
                fs::create_dir(path).unwrap();
            },
            &|path| {
                fs::remove_dir(path).unwrap();
                std::os::unix::fs::symlink("/dev/null", path).unwrap();
            },
            &|path| {
                fs::remove_file(path).unwrap();
                std::os::unix::fs::symlink("nowhere", path).unwrap();
            },
        ];
        for damage in damage {
            kept.iter().for_each(|path| damage(path));
            start(cache, "again");
        }
        // Files of another pipeline under this one's name: the driver is given data of the wrong kernel.
        kept.iter().for_each(|path| drop(fs::remove_file(path)));
        start(cache, "anew");
        let kept = files(cache);
        if let [first, rest @ ..] = &kept[..] {
            let bytes = fs::read(first).unwrap();
            rest.iter().for_each(|path| fs::write(path, &bytes).unwrap());
            start(cache, "swapped");
        }
        fs::write(cache.join("notes.txt"), "not ours").unwrap();
        start(cache, "beside");
        assert!(cache.join("notes.txt").exists());
    });
}

#[test]
fn a_directory_that_cannot_be_used_costs_nothing_else() {
    if is_child() {
        return;
    }
    lab::alone(|| {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("a file");
        fs::write(&file, "in the way").unwrap();
        let read_only = directory.path().join("read-only");
        fs::create_dir(&read_only).unwrap();
        fs::set_permissions(&read_only, fs::Permissions::from_mode(0o500)).unwrap();
        for place in [
            file.as_path(),
            &file.join("below"),
            &read_only,
            &read_only.join("below"),
            Path::new("/proc/nowhere"),
            Path::new("/dev/full"),
            Path::new("off"),
            Path::new(""),
        ] {
            start(place, "anywhere");
        }
        assert_eq!(fs::read_to_string(&file).unwrap(), "in the way");
    });
}

#[test]
fn a_full_disk_costs_nothing_else() {
    if is_child() {
        return;
    }
    lab::alone(|| {
        let directory = tempfile::tempdir().unwrap();
        let Some(disk) = Disk::mount(directory.path()) else {
            return lab::say("skipped: this process may mount no small disk");
        };
        start(&disk.at, "first");
        // Nothing is left for a second set of kernels.
        fs::write(disk.at.join("filler"), vec![0; 1 << 20]).unwrap_err();
        start(&disk.at, "many");
        let leftovers = fs::read_dir(&disk.at).unwrap().flatten();
        let leftovers = leftovers.filter(|entry| entry.file_name().to_string_lossy().starts_with(".new-"));
        assert_eq!(leftovers.count(), 0, "half-written files are left");
    });
}

/// A disk of 64 KiB.
struct Disk {
    at: PathBuf,
}

impl Disk {
    fn mount(at: &Path) -> Option<Disk> {
        let mut command = std::process::Command::new("mount");
        command.args(["-t", "tmpfs", "-o", "size=64k", "tmpfs"]).arg(at);
        let mounted = command.output().is_ok_and(|output| output.status.success());
        mounted.then(|| Disk { at: at.to_owned() })
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg(&self.at).output();
    }
}

#[test]
fn processes_that_share_a_cache_do_not_disturb_each_other() {
    if is_child() {
        return;
    }
    lab::alone(|| {
        let directory = tempfile::tempdir().unwrap();
        for _ in 0..2 {
            let children: Vec<_> = (0..3)
                .map(|_| process::command("many").env(CACHE, directory.path()).spawn().unwrap())
                .collect();
            for child in children {
                process::finish(child, LIMIT).expect_success();
            }
            files(directory.path()).iter().step_by(2).for_each(|path| fs::remove_file(path).unwrap());
        }
    });
}
