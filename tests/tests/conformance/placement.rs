//! Every intent either gives a placement that holds, or fails with a reason for each kind of memory.

use onebuf::{
    Buffer, BufferBuilder, DeviceUse, Error, HandleKind, HostAccess, HostPath, Semantic, Share, Strength,
    args,
};
use onebuf_tests::{Subject, kernels, lab};

const LEN: usize = 1000;

/// One way to ask.
#[derive(Clone, Copy, Debug)]
struct Asked {
    host: HostAccess,
    in_place: bool,
    device_use: DeviceUse,
    share: &'static [Share],
    semantic: Option<(Semantic, Strength)>,
}

impl Asked {
    fn all() -> Vec<Asked> {
        let mut semantics = vec![None];
        for semantic in Semantic::ALL {
            semantics.extend([Some((semantic, Strength::Prefer)), Some((semantic, Strength::Require))]);
        }
        let mut all = Vec::new();
        for host in [HostAccess::None, HostAccess::Read, HostAccess::Write, HostAccess::ReadWrite] {
            for in_place in [false, true] {
                for device_use in [DeviceUse::Streaming, DeviceUse::Heavy] {
                    for share in [&[][..], &[Share::Process], &[Share::Api], &[Share::Process, Share::Api]] {
                        for &semantic in &semantics {
                            all.push(Asked { host, in_place, device_use, share, semantic });
                        }
                    }
                }
            }
        }
        all
    }

    /// Whether the memory leaves the process, so that the memfd route may serve.
    fn is_shared(&self) -> bool {
        let required = matches!(self.semantic, Some((Semantic::Process | Semantic::Api, Strength::Require)));
        !self.share.is_empty() || required
    }

    fn builder<'a>(&self, subject: &'a Subject) -> BufferBuilder<'a, u32> {
        let mut builder = subject.device.buffer::<u32>(LEN).device_use(self.device_use);
        builder = if self.in_place { builder.host_in_place(self.host) } else { builder.host(self.host) };
        for &share in self.share {
            builder = builder.share(share);
        }
        match self.semantic {
            Some((semantic, Strength::Prefer)) => builder.prefer(semantic),
            Some((semantic, Strength::Require)) => builder.require(semantic),
            None => builder,
        }
    }
}

#[test]
fn every_intent_is_met_or_refused_with_all_reasons() {
    lab::on_every_device(|subject| {
        let kinds: Vec<String> = subject.device.profile().memory.into_iter().map(|kind| kind.name).collect();
        let increment = subject.kernel(kernels::INCREMENT);
        let mut met = 0;
        for asked in Asked::all() {
            match asked.builder(subject).build() {
                Ok(buffer) => {
                    check_words(&asked, &buffer, &kinds);
                    check_deeds(subject, &increment, &asked, &buffer);
                    met += 1;
                }
                Err(Error::NoPlacement { rejected, device, .. }) => {
                    assert!(device.contains(&subject.device.info().id.to_string()), "{device}");
                    let mut named: Vec<&str> = rejected.iter().map(|one| one.kind.as_str()).collect();
                    named.sort_unstable();
                    let mut all: Vec<&str> = kinds.iter().map(String::as_str).collect();
                    if asked.is_shared() {
                        all.push("memfd");
                    }
                    all.sort_unstable();
                    assert_eq!(named, all, "{asked:?}");
                    assert!(rejected.iter().all(|one| !one.reason.is_empty()), "{asked:?}");
                    let hard = asked.in_place
                        || !asked.share.is_empty()
                        || matches!(asked.semantic, Some((_, Strength::Require)));
                    assert!(hard, "{asked:?} is a wish, and was refused");
                }
                Err(other) => panic!("{asked:?}: {other}"),
            }
        }
        assert!(met > 0);
    });
}

/// What the placement says is in itself right.
fn check_words(asked: &Asked, buffer: &Buffer<u32>, kinds: &[String]) {
    let placement = buffer.placement();
    let told = format!("{asked:?}: {placement}");
    assert_eq!(placement.asked.size_bytes, (LEN * 4) as u64, "{told}");
    assert_eq!(placement.asked.host, asked.host, "{told}");
    assert_eq!(placement.asked.semantic, asked.semantic, "{told}");
    assert_eq!(placement.asked.share.len(), asked.share.len(), "{told}");
    let by_memfd = asked.is_shared() && placement.way == Some(HandleKind::Memfd);
    assert!(by_memfd || kinds.contains(&placement.kind), "{told}");
    assert_eq!(placement.lost.len() + usize::from(!by_memfd), kinds.len(), "{told}");
    assert!(
        placement.lost.iter().all(|lost| lost.kind != placement.kind && !lost.reason.is_empty()),
        "{told}"
    );
    assert!(placement.exportable || asked.share.is_empty(), "{told}");
    assert!(placement.path != HostPath::DeviceOnly || placement.semantic.is_none(), "{told}");
    if asked.host != HostAccess::None {
        assert!(!(asked.in_place && placement.staged), "{told}");
        assert!(placement.path != HostPath::DeviceOnly || placement.staged, "{told}");
        assert!(placement.host_cost.is_some(), "{told}");
    }
    let lines = placement.to_string();
    assert!(lines.starts_with(placement.path.name()) && lines.contains(&placement.kind), "{lines}");
    let first = lines.lines().next().unwrap_or_default();
    assert_eq!(first.contains("staged"), placement.staged, "{lines}");
    let memory_like = |semantic| matches!(semantic, Semantic::Unified | Semantic::Uma | Semantic::HostMapped);
    match asked.semantic {
        Some((wanted, Strength::Require)) => {
            assert!(placement.fell_back_from.is_none(), "{told}");
            assert!(!memory_like(wanted) || placement.semantic == Some(wanted), "{told}");
        }
        Some((wanted, Strength::Prefer)) => {
            let got = placement.semantic == Some(wanted) || placement.fell_back_from.is_none();
            assert_eq!(placement.fell_back_from, (!got).then_some(wanted), "{told}");
            assert!(!memory_like(wanted) || (placement.semantic == Some(wanted)) == got, "{told}");
        }
        None => assert!(placement.fell_back_from.is_none(), "{told}"),
    }
}

/// What the placement says happens: the CPU gets at the bytes, in place or through a copy that is counted.
fn check_deeds(subject: &Subject, increment: &onebuf::Kernel, asked: &Asked, buffer: &Buffer<u32>) {
    let told = format!("{asked:?}: {}", buffer.placement());
    let before = subject.device.copied_bytes();
    let values: Vec<u32> = (0..LEN as u32).map(|i| i * 7).collect();
    if asked.host.writes() {
        buffer.write().unwrap().copy_from_slice(&values);
    } else {
        let refused = buffer.write();
        assert!(matches!(refused, Err(Error::Unsupported { .. })), "{told}");
        buffer.copy_from_slice(&values).unwrap();
    }
    subject.run(increment, [LEN.div_ceil(64) as u32, 1, 1], args![buffer]);
    let result = if asked.host.reads() {
        buffer.read().unwrap().to_vec()
    } else {
        assert!(matches!(buffer.read(), Err(Error::Unsupported { .. })), "{told}");
        buffer.read_to_vec().unwrap()
    };
    assert!(result.iter().zip(&values).all(|(result, value)| *result == value + 1), "{told}");
    let copied = subject.device.copied_bytes() - before;
    let in_place = asked.host != HostAccess::None && !buffer.placement().staged;
    assert!(!in_place || asked.host != HostAccess::ReadWrite || copied == 0, "{copied} bytes copied, {told}");
    assert!(!buffer.placement().staged || copied >= 2 * (LEN as u64) * 4, "{copied} bytes copied, {told}");
}

#[test]
fn memory_shared_with_the_cpu_is_never_copied() {
    lab::on_every_device(|subject| {
        let buffer = subject.zeros::<u32>(LEN);
        if buffer.placement().staged {
            return subject.skip("its memory is staged");
        }
        let kernel = subject.kernel(kernels::INCREMENT);
        for round in 1..=50 {
            subject.run(&kernel, [16, 1, 1], args![buffer]);
            assert_eq!(buffer.read().unwrap()[LEN - 1], round * 2 - 1);
            buffer.write().unwrap().iter_mut().for_each(|word| *word += 1);
        }
        assert_eq!(subject.device.copied_bytes(), 0);
    });
}
