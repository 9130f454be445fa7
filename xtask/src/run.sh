#!/usr/bin/env bash
# Runs this bundle: every test program, the command, the examples. Needs bash and coreutils, no Rust and no network.
# Full outputs go to ${OUT:-./out}; the last things printed are a table and the totals. Exits 1 where something failed.
#   ONEBUF_REQUIRE=vulkan,cuda  backends that must be there: a missing one fails its tests
#   ONEBUF_VALIDATION=1         run under the Khronos validation layer, where it is installed
#   LIMIT=600                   seconds that one program may run
#   FILTER=name                 only tests whose name holds this
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=${OUT:-./out}
mkdir -p "$out"
out=$(cd "$out" && pwd)
export ONEBUF_REQUIRE=${ONEBUF_REQUIRE:-vulkan}
limit=${LIMIT:-600}
table=() passed=0 failed=0 ignored=0

# The sum of the numbers before a word in the closing lines of Rust's test harness.
count() {
  grep -a '^test result: ' "$2" | grep -oE "[0-9]+ $1" | awk '{ n += $1 } END { print n + 0 }'
}

# run NAME COMMAND...: one program with its output in $out/NAME.log, and a row of the table.
run() {
  local name=$1 start status ok bad skip seconds
  shift
  printf '%s ... ' "$name"
  start=$(date +%s.%N)
  timeout --kill-after=5 "$limit" "$@" >"$out/$name.log" 2>&1 </dev/null
  status=$?
  seconds=$(awk -v a="$start" -v b="$(date +%s.%N)" 'BEGIN { printf "%.1f", b - a }')
  ok=$(count passed "$out/$name.log") bad=$(count failed "$out/$name.log") skip=$(count ignored "$out/$name.log")
  if [ "$status" -ne 0 ]; then
    [ "$bad" -gt 0 ] || bad=1
  elif ! grep -qa '^test result: ' "$out/$name.log"; then
    ok=1
  fi
  case $status in
    0) echo "ok, $seconds s" ;;
    124 | 137) echo "killed after $limit s" ;;
    *) echo "FAILED, status $status" ;;
  esac
  [ "$status" -eq 0 ] || tail -n 40 "$out/$name.log"
  table+=("$(printf '%-36s %6d %6d %7d %8s' "$name" "$ok" "$bad" "$skip" "$seconds")")
  passed=$((passed + ok)) failed=$((failed + bad)) ignored=$((ignored + skip))
}

echo "commit: $(cat "$here/commit")"
command -v nvidia-smi >/dev/null && nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
"$here/bin/onebuf" devices || true
for program in "$here"/tests/*; do
  cd "$here" || exit 1
  run "$(basename "$program")" "$program" ${FILTER:+"$FILTER"}
done
if [ -z "${FILTER:-}" ]; then
  run report "$here/bin/onebuf" report --verify --measure
  run report-json "$here/bin/onebuf" report --verify --json
  for program in "$here"/examples/*; do
    name=$(basename "$program")
    if [ "$name" = pipeline ]; then
      run "example-$name" "$program" --input "$here/assets/coffee.png" --out "$out/demo"
    else
      run "example-$name" "$program"
    fi
  done
fi
printf '\n%-36s %6s %6s %7s %8s\n' program passed failed ignored seconds
printf '%s\n' "${table[@]}"
printf '\n%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$ignored"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
