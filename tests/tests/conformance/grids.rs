//! Grids of workgroups: empty ones, one, those at the device's limit and past it.

use onebuf::{Error, args};
use onebuf_tests::lab;

/// Counts the workgroups that ran, sums their ids, and notes every built-in value that is wrong.
const COUNT: &str = "
    struct Counts { groups: atomic<u32>, sum: atomic<u32>, wrong: atomic<u32> }
    struct Params { expected: vec3<u32>, add: u32 }
    @group(0) @binding(0) var<storage, read_write> counts: Counts;
    var<immediate> params: Params;
    @compute @workgroup_size(2, 1, 1)
    fn count(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
             @builtin(global_invocation_id) id: vec3<u32>, @builtin(local_invocation_id) local: vec3<u32>,
             @builtin(local_invocation_index) index: u32) {
        let right = all(groups == params.expected) && all(group < groups) && all(local == vec3(index, 0u, 0u))
            && all(id == vec3(group.x * 2u + index, group.y, group.z));
        if !right { atomicAdd(&counts.wrong, 1u); }
        if index == 0u {
            atomicAdd(&counts.groups, 1u);
            atomicAdd(&counts.sum, group.x + group.y * 3u + group.z * 5u + params.add);
        }
    }";

/// The grids whose number of workgroups a machine without a GPU can run.
const MOST_GROUPS: u64 = 300_000;

#[test]
fn every_grid_runs_each_workgroup_once() {
    lab::on_every_device(|subject| {
        let kernel = subject.kernel(COUNT);
        let counts = subject.zeros::<u32>(3);
        let [x, y, z] = subject.device.info().limits.max_groups;
        let grids = [
            [1, 1, 1],
            [3, 5, 7],
            [65_535, 1, 1],
            [65_536, 1, 1],
            [1, 65_537, 2],
            [2, 1, 65_536],
            [x, 1, 1],
            [x.saturating_add(1), 1, 1],
            [1, y, 1],
            [2, y.saturating_add(1), 1],
            [1, 1, z.saturating_add(1)],
            [x.saturating_add(1), 2, 1],
            [1, y.saturating_add(1), 2],
            [2, 1, z.saturating_add(3)],
        ];
        for groups in grids {
            let many: u64 = groups.iter().map(|&n| u64::from(n)).product();
            if many > MOST_GROUPS {
                continue;
            }
            counts.write().unwrap().fill(0);
            let [gx, gy, gz] = groups;
            subject.run(&kernel, groups, args![counts, [gx, gy, gz, 9u32]]);
            let mut sum = 9u32.wrapping_mul(many as u32);
            for (length, weight) in [(gx, 1u64), (gy, 3), (gz, 5)] {
                let along: u64 = (0..u64::from(length)).sum();
                sum = sum.wrapping_add((along * (many / u64::from(length)) * weight) as u32);
            }
            assert_eq!(*counts.read().unwrap(), [many as u32, sum, 0], "grid {groups:?}");
        }
    });
}

#[test]
fn grids_without_workgroups_do_nothing_after_their_check() {
    lab::on_every_device(|subject| {
        let kernel = subject.kernel(COUNT);
        let counts = subject.zeros::<u32>(3);
        let stream = subject.stream();
        let last = stream.last();
        for groups in [[0, 1, 1], [1, 0, 1], [1, 1, 0], [0, 0, 0], [0, u32::MAX, u32::MAX]] {
            assert_eq!(stream.launch(&kernel, groups, args![counts, [0u32; 4]]).unwrap(), last);
            let wrong = stream.launch(&kernel, groups, args![counts]);
            assert!(matches!(wrong, Err(Error::BindingMismatch { .. })), "{wrong:?}");
        }
        stream.wait().unwrap();
        assert_eq!(*counts.read().unwrap(), [0; 3]);
    });
}

#[test]
fn a_grid_of_absurd_size_is_refused() {
    lab::on_every_device(|subject| {
        let kernel = subject.kernel(COUNT);
        let counts = subject.zeros::<u32>(3);
        let stream = subject.stream();
        let refused = stream.launch(&kernel, [u32::MAX; 3], args![counts, [0u32; 4]]);
        assert!(matches!(refused, Err(Error::LimitExceeded { .. })), "{refused:?}");
        // The stream is as it was.
        stream.launch(&kernel, [1, 1, 1], args![counts, [1u32, 1, 1, 0]]).unwrap();
        assert_eq!(*counts.read().unwrap(), [1, 0, 0]);
    });
}

#[test]
fn split_grids_keep_the_immediates_and_follow_in_order() {
    lab::on_every_device(|subject| {
        let wide = subject.device.info().limits.max_groups[1].saturating_add(1);
        if u64::from(wide) > MOST_GROUPS {
            return subject.skip("one dispatch is as large as a test can run");
        }
        let kernel = subject.kernel(COUNT);
        let counts = subject.zeros::<u32>(3);
        // Wide and plain variants of one kernel in turn, with no wait between.
        let mut groups = 0u32;
        let mut sum = 0u32;
        for round in 0..4u32 {
            for grid in [[1, wide, 1], [4, 1, 1]] {
                subject.run(&kernel, grid, args![counts, [grid[0], grid[1], grid[2], round]]);
                let many = grid[0] * grid[1];
                groups += many;
                let along: u64 =
                    (0..u64::from(grid[0])).sum::<u64>() + 3 * (0..u64::from(grid[1])).sum::<u64>();
                sum = sum.wrapping_add(along as u32).wrapping_add(many.wrapping_mul(round));
            }
        }
        assert_eq!(*counts.read().unwrap(), [groups, sum, 0]);
    });
}

#[test]
fn groups_for_covers_a_grid_of_invocations() {
    lab::on_every_device(|subject| {
        let kernel = subject.kernel(COUNT);
        assert_eq!(kernel.workgroup_size(), [2, 1, 1]);
        assert_eq!(kernel.groups_for([0, 1, 7]), [0, 1, 7]);
        assert_eq!(kernel.groups_for([u32::MAX, u32::MAX, 3]), [1 << 31, u32::MAX, 3]);
    });
}
