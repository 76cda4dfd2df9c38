# cmake -DFILES=a;b -DFOLDER=… -DOUTPUT=… -P embed_text.cmake: writes a .cpp that holds the files as text, by their
# names from the folder on.
# A raw string a line, which the compiler joins: no literal comes near a compiler's limit, nothing needs escaping.
set(rows "")
foreach(file IN LISTS FILES)
  file(RELATIVE_PATH name ${FOLDER} ${file})
  file(READ "${file}" text)
  string(FIND "${text}" ")mercer\"" clash)
  if(NOT clash EQUAL -1)
    message(FATAL_ERROR "embed_text: ${name} must not contain )mercer\", which ends a raw string here.")
  endif()
  string(REPLACE "\n" "\n)mercer\"\n     R\"mercer(" text "${text}")
  string(APPEND rows "    {\"${name}\",\n     R\"mercer(${text})mercer\"},\n")
endforeach()
file(WRITE "${OUTPUT}" "// Written by cmake/embed_text.cmake from src/kernels/cuda/.
#include \"codegen/cuda/cuda_text.h\"

namespace mercer::codegen {

const std::vector<CudaText>& cuda_texts() {
  static const std::vector<CudaText> texts = {
${rows}  };
  return texts;
}

}  // namespace mercer::codegen
")
