//! Which devices there are, how one is named, and what it says of itself.

use onebuf::{DeviceId, DeviceUuid, Error, HostAccess, Registry, Semantic};
use onebuf_tests::lab;

#[test]
fn every_device_opens_by_each_of_its_names() {
    lab::on_real_devices(|subject| {
        let info = subject.device.info();
        let registry = lab::registry();
        let mut names = vec![info.id.to_string()];
        names.extend(info.uuid.map(|uuid| uuid.to_string()));
        for name in names {
            let device = registry.open(&name).unwrap();
            // Several backends may serve the same hardware, by one UUID.
            let same =
                device.info().id == info.id || Some(&name) == info.uuid.map(|u| u.to_string()).as_ref();
            assert!(same && device.info().uuid == info.uuid, "{name} opens {}", device.info().id);
            assert!(device.chosen_because().contains(&name), "{}", device.chosen_because());
        }
        for name in [info.kind.name(), &*info.id.backend] {
            assert!(registry.open(name).is_ok(), "no device is a {name}");
        }
    });
}

#[test]
fn the_default_device_is_explained() {
    lab::on_real_devices(|_| {
        let choice = lab::registry().default_choice().unwrap();
        let device = lab::registry().open_default().unwrap();
        assert_eq!(device.info().id, choice.id);
        assert_eq!(device.chosen_because(), choice.why);
        assert!(!choice.why.is_empty());
        let named = std::env::var("ONEBUF_DEVICE").is_ok();
        let software = device.info().kind == onebuf::DeviceKind::Software;
        assert!(named || !software || choice.why.contains("no GPU"), "{}", choice.why);
    });
}

#[test]
fn a_name_that_no_device_has_is_refused_with_those_there_are() {
    lab::on_real_devices(|subject| {
        let id = subject.device.info().id.to_string();
        let backend = &subject.device.info().id.backend;
        let unknown = [
            format!("{backend}:99"),
            "metal".to_owned(),
            "nothing:0".to_owned(),
            String::new(),
            "vulkan:".to_owned(),
            DeviceUuid([0xee; 16]).to_string(),
        ];
        for name in unknown {
            let Err(error) = lab::registry().open(&name) else { panic!("`{name}` is a device") };
            assert!(matches!(error, Error::NoDevice(_)), "{name}: {error}");
            assert!(error.to_string().contains(&id), "{error}");
        }
        let none = Registry::with(Vec::new());
        assert!(matches!(none.open_default(), Err(Error::NoDevice(_))));
        assert!(matches!(none.open("vulkan:0"), Err(Error::NoDevice(_))));
        assert!(none.adapters().adapters.is_empty());
    });
}

#[test]
fn an_ordinal_past_the_last_is_refused_by_the_backend() {
    lab::on_real_devices(|subject| {
        let id = &subject.device.info().id;
        for one in lab::tested().iter().filter(|one| one.name == id.backend) {
            let backend = one.backend.clone().unwrap();
            assert_eq!(backend.name(), one.name);
            for ordinal in [backend.adapters().unwrap().len() as u32, u32::MAX] {
                assert!(matches!(backend.open(ordinal), Err(Error::NoDevice(_))));
            }
        }
    });
}

#[test]
fn what_a_device_says_of_itself_is_whole() {
    lab::on_every_device(|subject| {
        let info = subject.device.info();
        assert_eq!(info.id.to_string().parse::<DeviceId>().unwrap(), info.id);
        for text in [&info.name, &info.driver, &info.api] {
            assert!(!text.is_empty());
        }
        assert!(info.memory_bytes > 0);
        let limits = &info.limits;
        for (what, value) in [
            ("buffer", limits.max_buffer_bytes),
            ("allocation", limits.max_allocation_bytes),
            ("storage binding", limits.max_storage_binding_bytes),
            ("uniform binding", limits.max_uniform_binding_bytes),
            ("workgroup memory", limits.max_workgroup_bytes),
            ("invocations", u64::from(limits.max_workgroup_invocations)),
            ("immediates", u64::from(limits.max_immediate_bytes)),
            ("groups", u64::from(limits.max_bind_groups)),
            ("storage bindings", u64::from(limits.max_storage_bindings)),
        ] {
            assert!(value > 0, "{what}");
        }
        for alignment in [
            limits.storage_offset_alignment_bytes,
            limits.uniform_offset_alignment_bytes,
            limits.non_coherent_atom_bytes,
        ] {
            assert!(alignment.is_power_of_two(), "{alignment}");
        }
        let import = limits.host_import_alignment_bytes;
        assert!(import == 0 || import.is_power_of_two(), "{import}");
        assert!(limits.max_groups.iter().chain(&limits.max_workgroup_size).all(|&n| n > 0));
        assert!(limits.subgroup_size[0] <= limits.subgroup_size[1]);
        let profile = subject.device.profile();
        assert!(!profile.memory.is_empty() && !profile.heaps.is_empty());
        assert!(profile.memory.iter().all(|kind| kind.heap < profile.heaps.len()));
        assert_eq!(profile.max_buffer_bytes, limits.max_buffer_bytes);
        assert_eq!(profile.max_allocation_bytes, limits.max_allocation_bytes);
    });
}

#[test]
fn every_semantic_has_its_facts_and_they_hold() {
    use onebuf::core::report::Answer;
    lab::on_real_devices(|subject| {
        let facts = subject.device.semantics();
        assert!(facts.iter().map(|facts| facts.semantic).eq(Semantic::ALL));
        for facts in facts {
            let (semantic, advertised) = (facts.semantic, facts.advertised.value);
            assert!(!facts.summary.is_empty() && !facts.advertised.evidence.is_empty(), "{semantic}");
            // What is said of memory decides what can be required of a buffer.
            if matches!(
                semantic,
                Semantic::Unified | Semantic::Uma | Semantic::HostMapped | Semantic::Process
            ) {
                let wanted = subject.device.buffer::<u32>(16).host(HostAccess::ReadWrite).require(semantic);
                let built = wanted.build();
                assert_eq!(built.is_ok(), advertised == Answer::Yes, "{semantic}: {built:?}, {advertised:?}");
            }
            if semantic == Semantic::HostImport {
                let alignment = subject.device.info().limits.host_import_alignment_bytes;
                assert_eq!(advertised == Answer::Yes, alignment > 0);
            }
        }
    });
}
