@group(0) @binding(0) var<storage, read_write> a: array<i32>;

fn early(n: i32) -> i32 {
    if n < 0 { return -1; }
    var sum = 0;
    for (var i = 0; i < n; i++) {
        if i % 3 == 0 { continue; }
        if sum > 100 { break; }
        sum += i;
    }
    return sum;
}

fn nested(n: u32) -> u32 {
    var r = 0u;
    loop {
        let k = r * 2u + n;
        if k > 50u { break; }
        switch k % 5u {
            case 0u, 1u: { r += 3u; continue; }
            case 2u: { r += 1u; if r > 10u { break; } r += 1u; }
            default: { r += 2u; }
        }
        r += 1u;
        continuing {
            r += k % 2u;
            break if r > 40u;
        }
    }
    return r;
}

@compute @workgroup_size(1)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let i = id.x;
    a[i] = early(a[i]);
    a[i + 1u] = i32(nested(u32(a[i + 1u])));
    var n = a[i + 2u];
    while n > 1 {
        n = select(n / 2, 3 * n + 1, (n & 1) == 1);
        a[i + 3u] += 1;
    }
    switch a[i] {
        case -2147483648: { a[i] = 0; }
        case 5: { a[i] = 1; }
        default: {}
    }
    for (var x = 0; x < 4; x++) { for (var y = x; y < 4; y++) { if x == y { continue; } a[i] += x * y; } }
}
