@group(0) @binding(0) var<storage, read_write> a: array<i32>;
var<private> p: i32;

fn change() -> i32 { p += 10; a[1] += 1; return p; }

@compute @workgroup_size(1)
fn main() {
    let before = a[0];
    let sum = a[0] + a[1];
    a[0] = 5;
    a[1] = sum + before + a[0];
    let x = p;
    let y = change() + x * change();
    a[2] = y + p + x;
    var i = 0;
    let q = &a[i];
    i = 3;
    *q = 7;
    let t = a[i];
    a[i] = a[i + 1];
    a[i + 1] = t;
    a[5] = a[5] + 0 * change();
}
