//! The command line, as it explains itself.

mod support;

use support::{expect, onebuf, text};

#[test]
fn each_help_is_as_reviewed() {
    for (name, args) in [
        ("onebuf", vec!["--help"]),
        ("devices", vec!["devices", "--help"]),
        ("report", vec!["report", "--help"]),
        ("doctor", vec!["doctor", "--help"]),
        ("run", vec!["run", "--help"]),
        ("translate", vec!["translate", "--help"]),
        ("bench", vec!["bench", "--help"]),
        ("serve", vec!["serve", "--help"]),
        ("ipc", vec!["ipc", "--help"]),
    ] {
        insta::assert_snapshot!(name, text(&expect(&mut onebuf(&args), 0).stdout));
    }
}

#[test]
fn wrong_use_exits_2_and_says_what_is_right() {
    for args in [
        vec![],
        vec!["nonsense"],
        vec!["devices", "--nonsense"],
        vec!["report", "--html"],
        vec!["run"],
        vec!["run", "kernel.wgsl"],
        vec!["run", "kernel.wgsl", "--groups", "0"],
        vec!["run", "kernel.wgsl", "--groups", "1,2,3,4"],
        vec!["run", "kernel.wgsl", "--groups", "4294967296"],
        vec!["run", "kernel.wgsl", "--groups", "1", "--repeat", "0"],
        vec!["run", "kernel.wgsl", "--groups", "1", "--in", "a.npy"],
        vec!["run", "kernel.wgsl", "--groups", "1", "--in", "0:x=a.npy"],
        vec!["run", "kernel.wgsl", "--groups", "1", "--in", "0:0=a.txt"],
        vec!["run", "kernel.wgsl", "--groups", "1", "--out", "0:0=a.npy"],
        vec!["run", "kernel.wgsl", "--groups", "1", "--out", "0:0=a.npy:f8:1"],
        vec!["run", "kernel.wgsl", "--groups", "1", "--out", "0:0=a.npy:f4:"],
        vec!["run", "kernel.wgsl", "--groups", "1", "--inout", "0:0=a.npy"],
        vec!["run", "kernel.wgsl", "--groups", "1", "--inout", "0:0=a.bin:b.npy"],
        vec!["run", "kernel.wgsl", "--groups", "1", "--set", "X"],
        vec!["run", "kernel.wgsl", "--groups", "1", "--set", "X=NaN"],
        vec!["translate", "kernel.wgsl"],
        vec!["translate", "kernel.wgsl", "--target", "metal"],
        vec!["translate", "kernel.wgsl", "--target", "spirv", "--check", "-o", "x"],
    ] {
        let output = expect(&mut onebuf(&args), 2);
        assert!(output.stdout.is_empty(), "{args:?}");
        assert!(!output.stderr.is_empty(), "{args:?}");
    }
}
