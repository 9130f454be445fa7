//! Which device is taken, and why.

use std::sync::Arc;

use onebuf::core::backend::{Backend, Device};
use onebuf::{Adapter, DeviceKind, DeviceUuid, Error, Registry};

use crate::fake::{FakeBackend, Options};

fn options(kind: DeviceKind) -> Options {
    Options { kind, ..Options::uma() }
}

fn registry(backends: Vec<FakeBackend>) -> Registry {
    Registry::with(backends.into_iter().map(|b| Arc::new(b) as Arc<dyn Backend>).collect())
}

struct Missing;

impl Backend for Missing {
    fn name(&self) -> &'static str {
        "missing"
    }

    fn adapters(&self) -> onebuf::Result<Vec<Adapter>> {
        Err(Error::BackendUnavailable { backend: "missing", reason: "no driver".into() })
    }

    fn open(&self, _: u32) -> onebuf::Result<Arc<dyn Device>> {
        Err(Error::NoDevice("missing".into()))
    }
}

#[test]
fn real_gpus_come_first_and_software_last() {
    use DeviceKind::{Discrete, Integrated, Other, Software, Virtual};
    let order = [Discrete, Integrated, Virtual, Other, Software];
    for (best, kind) in order.into_iter().enumerate() {
        let devices = order[best..].iter().rev().map(|&kind| options(kind)).collect();
        let choice = registry(vec![FakeBackend::new("fake", devices)]).default_choice().unwrap();
        assert_eq!(choice.id.ordinal as usize, order.len() - best - 1, "{kind}");
        if kind == Discrete {
            assert!(choice.why.contains("ahead of fake:3 (integrated)"), "{}", choice.why);
        }
        if kind == Software {
            assert!(choice.why.contains("no GPU was found"), "{}", choice.why);
        }
    }
}

#[test]
fn the_choice_is_kept_with_the_device() {
    let registry = registry(vec![FakeBackend::new("fake", vec![options(DeviceKind::Software)])]);
    let device = registry.open_default().unwrap();
    assert!(device.chosen_because().contains("computes on the CPU"), "{}", device.chosen_because());
    let device = registry.open("software").unwrap();
    assert_eq!(device.chosen_because(), "asked for by `software`");
}

#[test]
fn devices_are_opened_by_every_name() {
    let uuid = DeviceUuid([7; 16]);
    let cuda = Options { uuid: Some(uuid), ..options(DeviceKind::Discrete) };
    let vulkan = vec![
        Options { rejected: Some("no timeline semaphores".into()), ..options(DeviceKind::Integrated) },
        options(DeviceKind::Software),
        Options { uuid: Some(uuid), ..options(DeviceKind::Discrete) },
    ];
    let registry = Registry::with(vec![
        Arc::new(FakeBackend::new("cuda", vec![cuda])),
        Arc::new(Missing),
        Arc::new(FakeBackend::new("vulkan", vulkan)),
    ]);
    let listing = registry.adapters();
    assert_eq!((listing.adapters.len(), listing.unavailable.len()), (4, 1));
    let open = |name: &str| registry.open(name).map(|device| device.info().id.to_string());
    for (name, id) in [
        ("vulkan:1", "vulkan:1"),
        ("vulkan", "vulkan:2"), // the best of the backend
        ("software", "vulkan:1"),
        ("discrete", "cuda:0"), // the first backend
        ("07070707-0707-0707-0707-070707070707", "cuda:0"),
        ("07070707070707070707070707070707", "cuda:0"),
    ] {
        assert_eq!(open(name).unwrap(), id, "{name}");
    }
    let choice = registry.default_choice().unwrap();
    assert!(choice.why.contains("the same hardware is vulkan:2"), "{}", choice.why);
    assert!(!choice.why.contains("ahead of vulkan:2"), "{}", choice.why);
    for (name, part) in [
        ("vulkan:0", "cannot be used: no timeline semaphores"),
        ("integrated", "cannot be used: no timeline semaphores"),
        ("vulkan:9", "no device is `vulkan:9`"),
        ("metal", "the missing backend cannot start: no driver"),
        ("", "no device is ``"),
        ("08080808080808080808080808080808", "07070707-0707"),
    ] {
        let Err(Error::NoDevice(message)) = open(name) else { panic!("{name}") };
        assert!(message.contains(part), "{name}: {message}");
    }
}

#[test]
fn without_a_device_everything_that_was_found_is_told() {
    let rejected = Options { rejected: Some("too old".into()), ..Options::uma() };
    let registry =
        Registry::with(vec![Arc::new(Missing), Arc::new(FakeBackend::new("fake", vec![rejected]))]);
    let Err(Error::NoDevice(message)) = registry.open_default().map(drop) else { panic!() };
    assert!(message.contains("rejected: too old") && message.contains("no driver"), "{message}");
    let Err(Error::NoDevice(message)) = Registry::with(Vec::new()).open_default().map(drop) else { panic!() };
    assert!(message.contains("onebuf doctor"), "{message}");
}
