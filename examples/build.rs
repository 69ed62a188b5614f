//! Writes the gRPC example's servers and clients, which `protoc` would write from a `.proto` file.

use tonic_build::manual::{Builder, Method, Service};

fn main() {
    let method = |name: &str, route: &str, input: &str, output: &str| {
        Method::builder()
            .name(name)
            .route_name(route)
            .input_type(format!("crate::grpc::{input}"))
            .output_type(format!("crate::grpc::{output}"))
            .codec_path("tonic_prost::ProstCodec")
            .build()
    };
    let service =
        |name: &str, method| Service::builder().package("bank").name(name).method(method).build();
    Builder::new().compile(&[
        service("Transfers", method("transfer", "Transfer", "Transfer", "Receipt")),
        service("Balances", method("get", "Get", "Account", "Balance")),
    ]);
    println!("cargo::rerun-if-changed=build.rs");
}
