// Where this checkout lies: golden files, device text, the libraries of its .venv.
#pragma once

#include <filesystem>
#include <vector>

namespace mercer::testing {

std::filesystem::path source_folder();

/// `site-packages` of the checkout's .venv (make setup), none where it has none.
std::vector<std::filesystem::path> venv_packages();

}  // namespace mercer::testing
