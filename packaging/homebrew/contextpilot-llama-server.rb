# A formula for a tap. Nothing is published yet: homepage, url and sha256 are to be those of a release, and
# until then it installs from a checkout:
#
#   brew install --HEAD ./packaging/homebrew/contextpilot-llama-server.rb
class ContextpilotLlamaServer < Formula
  desc "Drop-in replacement for llama-server that tells the truth about its KV cache"
  homepage "https://contextpilot-llama-server.invalid/"
  license "Apache-2.0"
  head "file://#{File.expand_path("../..", __dir__)}", using: :git, branch: "main"

  depends_on "rust" => :build
  depends_on "llama.cpp"

  def install
    # The hook library is inside the launcher. It is not put into lib: Homebrew would sign it anew there,
    # and the launcher takes only the bytes that it was built with.
    system "cargo", "install", *std_cargo_args
    man1.mkpath
    system bin/"contextpilot-llama", "man", man1
    generate_completions_from_executable(bin/"contextpilot-llama", "completions")
  end

  test do
    assert_match "0 reports were wrong", shell_output("#{bin}/contextpilot-llama demo")
  end
end
