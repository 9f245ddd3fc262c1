//! The misbehaving server of the integration tests; each argument is one behaviour.

fn main() {
    toolcrib_fakes::servers::fixture::main();
}
