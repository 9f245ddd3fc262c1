//! stub
pub struct Builtin;
impl Builtin {
    pub fn parse(_n: &str, _a: &[String], _b: &std::path::Path) -> Result<Self, String> {
        unimplemented!()
    }
    pub async fn serve(self, _t: tokio::io::DuplexStream) {}
}
pub async fn serve_builtin(_n: &str, _a: &[String], _b: &std::path::Path) -> crate::Result<()> {
    Ok(())
}
