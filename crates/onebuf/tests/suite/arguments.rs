//! Argument lists: what is refused, and that nothing has happened then.

use std::sync::atomic::Ordering::Relaxed;

use onebuf::core::error::BindingRef;
use onebuf::{Arg, Error, args};
use proptest::prelude::*;

use crate::fake::mix;
use crate::uma;

#[derive(Clone, Copy, bytemuck::NoUninit)]
#[repr(C)]
struct Params {
    width: u32,
    radius: f32,
}

fn problem(outcome: onebuf::Result<onebuf::Ticket>) -> (BindingRef, String) {
    match outcome {
        Err(Error::BindingMismatch { binding, problem, .. }) => (binding, problem),
        other => panic!("{other:?}"),
    }
}

#[test]
fn buffers_by_position_and_a_value_anywhere() {
    let (device, _) = uma();
    let a = device.buffer::<u32>(64).init(&[3; 64]).unwrap();
    let b = device.buffer::<u32>(64).build().unwrap();
    let kernel = device.kernel("r w imm8").unwrap().build().unwrap();
    let stream = device.stream().unwrap();
    let params = Params { width: 640, radius: 1.5 };
    let expected = vec![mix([2, 1, 1], bytemuck::bytes_of(&params), &[3], 1); 64];
    stream.launch(&kernel, [2, 1, 1], args![&a, &b, params]).unwrap();
    assert_eq!(b.read_to_vec().unwrap(), expected);
    stream.launch(&kernel, [2, 1, 1], args![params, a, b.as_slice()]).unwrap();
    assert_eq!(b.read_to_vec().unwrap(), expected);
    let list = vec![Arg::buffer(&a), Arg::immediates(bytemuck::bytes_of(&params)), Arg::buffer(&b)];
    stream.launch(&kernel, [2, 1, 1], &list).unwrap();
    assert_eq!(b.read_to_vec().unwrap(), expected);
}

#[test]
fn each_mismatch_names_its_binding() {
    let (device, fake) = uma();
    let words = device.buffer::<u32>(64).build().unwrap();
    let out = device.buffer::<[u32; 4]>(16).build().unwrap();
    let floats = device.buffer::<f32>(64).build().unwrap();
    let bytes = device.buffer::<u8>(64).build().unwrap();
    let kernel = device.kernel("r w imm4").unwrap().build().unwrap();
    let stream = device.stream().unwrap();
    let launch = |args: &[Arg<'_>]| problem(stream.launch(&kernel, [1; 3], args));
    assert_eq!(launch(args![&words, 1u32]).0, BindingRef::List);
    assert_eq!(launch(args![&words, &out, &bytes, 1u32]).0, BindingRef::List);
    assert_eq!(launch(args![&words, &out]).0, BindingRef::Immediate);
    assert_eq!(launch(args![&words, &out, [1u32; 2]]).0, BindingRef::Immediate);
    let (binding, text) = launch(args![&words, &out, 1u32, 2u32]);
    assert_eq!(binding, BindingRef::Immediate);
    assert!(text.contains("more than one"), "{text}");
    let (binding, text) = launch(args![&words, &floats, 1u32]);
    assert!(matches!(binding, BindingRef::Slot { ref name, .. } if name == "b1"));
    assert!(text.contains("holds f32"), "{text}");
    assert!(launch(args![&words, words.slice(..32).unwrap(), 1u32]).1.contains("overlaps"));
    assert!(launch(args![words.slice(1..).unwrap(), &out, 1u32]).1.contains("multiple of 16"));
    assert!(launch(args![words.slice(4..4).unwrap(), &out, 1u32]).1.contains("at least 4"));
    assert_eq!(fake.core.submissions.load(Relaxed), 0);
    // Bytes are untyped, vectors of the scalar are the scalar, and parts that do not touch may be written.
    stream.launch(&kernel, [1; 3], args![&bytes, &out, 1u32]).unwrap();
    stream
        .launch(&kernel, [1; 3], args![words.slice(..32).unwrap(), words.slice(32..).unwrap(), 1u32])
        .unwrap();
}

#[test]
fn sizes_of_bindings_are_limited() {
    let (device, _) = uma();
    let large = device.buffer::<u32>((1 << 26) + 1).build().unwrap();
    let small = device.buffer::<u32>(16).build().unwrap();
    let stream = device.stream().unwrap();
    let storage = device.kernel("r w").unwrap().build().unwrap();
    let refused = stream.launch(&storage, [1; 3], args![&large, &small]);
    assert!(matches!(refused, Err(Error::LimitExceeded { required, .. }) if required == (1 << 28) + 4));
    stream.launch(&storage, [1; 3], args![large.slice(..1 << 26).unwrap(), &small]).unwrap();
    let uniform = device.kernel("u w").unwrap().build().unwrap();
    let refused = stream.launch(&uniform, [1; 3], args![large.slice(..1 << 20).unwrap(), &small]);
    assert!(matches!(refused, Err(Error::LimitExceeded { available: 65_536, .. })));
    let refused = problem(stream.launch(&uniform, [1; 3], args![large.slice(4..8).unwrap(), &small]));
    assert!(refused.1.contains("multiple of 64"), "{}", refused.1);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 8 } else { 1000 }, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever is put together: an error or a submission, never a panic, and memory goes back to where it was.
    #[test]
    fn random_lists_are_refused_or_run(
        bindings in prop::collection::vec(prop::sample::select(vec!["r", "w", "rw", "u"]), 0..6),
        immediates in prop::option::of(0u32..40),
        args in prop::collection::vec((0usize..5, 0usize..80, 0usize..80), 0..8),
        groups in prop::array::uniform3(0u32..4),
    ) {
        let (device, fake) = uma();
        let mut source = bindings.join(" ");
        if let Some(bytes) = immediates {
            source.push_str(&format!(" imm{bytes}"));
        }
        let kernel = match device.kernel(&format!("{source} wg8")).unwrap().build() {
            Ok(kernel) => kernel,
            Err(Error::LimitExceeded { .. }) => return Ok(()), // more uniforms than there may be
            Err(other) => panic!("{other}"),
        };
        let stream = device.stream().unwrap();
        let buffers = [0, 1, 33, 64].map(|len| device.buffer::<u32>(len).init_with(|i| i as u32).unwrap());
        let data = [0u8; 80];
        let mut list = Vec::new();
        for (which, start, end) in args {
            match buffers.get(which) {
                Some(buffer) => match buffer.slice(start..end) {
                    Ok(slice) => list.push(Arg::buffer(slice)),
                    Err(error) => {
                        prop_assert!(matches!(error, Error::InvalidArgument(_)));
                        list.push(Arg::buffer(buffer));
                    }
                },
                None => list.push(Arg::immediates(&data[..start])),
            }
        }
        match stream.launch(&kernel, groups, &list) {
            Ok(_) => prop_assert!(list.len() >= bindings.len()),
            Err(Error::BindingMismatch { .. } | Error::LimitExceeded { .. }) => {
                prop_assert_eq!(fake.core.submissions.load(Relaxed), 0);
            }
            Err(other) => prop_assert!(false, "{}", other),
        }
        device.wait_idle().unwrap();
        drop(list);
        drop(buffers);
        device.trim();
        prop_assert_eq!(device.memory().live_bytes, 0);
        prop_assert_eq!(fake.core.live_memories.load(Relaxed), 0);
    }
}
