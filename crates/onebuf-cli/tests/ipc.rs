//! `onebuf serve` and `onebuf ipc`.

mod support;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use onebuf_ipc::broker::Client;
use onebuf_ipc::{Memfd, Peers, SharedBuffer};
use support::{expect, json, onebuf, text};

/// A broker of the command's, which listens.
fn serve(socket: &str, more: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_onebuf"));
    command.args(["serve", "--socket", socket]).args(more).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stderr.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("serving at"), "{line}");
    child
}

fn share(bytes: u64) -> SharedBuffer {
    SharedBuffer::from_export(Memfd::create(bytes, 4096).unwrap().export(bytes).unwrap(), bytes).unwrap()
}

#[test]
fn names_are_listed_inspected_and_released() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("broker");
    let socket = path.to_str().unwrap();
    let missing = expect(&mut onebuf(&["ipc", "ls", "--socket", socket]), 1);
    assert!(text(&missing.stderr).contains("onebuf serve"));

    let mut broker = serve(socket, &["--mebibytes", "1"]);
    let again = expect(&mut onebuf(&["serve", "--socket", socket]), 1);
    assert!(text(&again.stderr).contains("listens"), "{}", text(&again.stderr));
    assert_eq!(text(&expect(&mut onebuf(&["ipc", "ls", "--socket", socket]), 0).stdout), "");

    let mut client = Client::connect(Path::new(socket), &Peers::SameUser).unwrap();
    client.publish("frames/left", &share(4096)).unwrap();
    client.open("frames/left").unwrap();
    assert!(client.publish("too large", &share(1 << 20)).is_err());
    let list = text(&expect(&mut onebuf(&["ipc", "ls", "--socket", socket]), 0).stdout);
    assert!(list.contains("frames/left") && list.contains("4 KiB") && list.contains("memfd"), "{list}");
    let page = text(&expect(&mut onebuf(&["ipc", "inspect", "frames/left", "--socket", socket]), 0).stdout);
    assert!(
        page.contains(&format!("process {}", std::process::id())) && page.contains("holders: 1"),
        "{page}"
    );
    let named = json(&mut onebuf(&["ipc", "inspect", "frames/left", "--json", "--socket", socket]), 0);
    assert_eq!(named["schema"], "onebuf.ipc/1");
    assert_eq!(named["names"][0]["holders"][0]["pid"], std::process::id());
    assert!(named["names"][0].get("object").is_none(), "an object's name is for its holders");

    expect(&mut onebuf(&["ipc", "release", "frames/left", "--socket", socket]), 0);
    let gone = expect(&mut onebuf(&["ipc", "inspect", "frames/left", "--socket", socket]), 1);
    assert!(text(&gone.stderr).contains("there is no"), "{}", text(&gone.stderr));

    // A signal is a clean stop: the socket goes, and who is connected is told.
    let pid = rustix::process::Pid::from_child(&broker);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(broker.wait().unwrap().success());
    assert!(!path.exists());
    assert!(matches!(client.list(), Err(onebuf::Error::Refused(why)) if why.contains("stops")));
}
