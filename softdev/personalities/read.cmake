# Turns personalities/*.toml into core/personalities.inc, which src/core/personality.c includes. A file is lines of
# `name = value`; a value is a number, a text, true or false, and so is C's.
#
#   cmake -DOUTPUT=personalities.inc -P read.cmake        by hand; the build calls the function
function(softdev_personalities directory output)
  file(GLOB files "${directory}/*.toml")
  set(text "/* Made from personalities/ by read.cmake. */\n")
  set(table "")
  foreach(path IN LISTS files)
    get_filename_component(name "${path}" NAME_WE)
    string(APPEND text "static void read_${name}(struct soft_personality *p)\n{\n")
    file(STRINGS "${path}" lines REGEX "^[a-z_]+ = ")
    foreach(line IN LISTS lines)
      if(NOT line MATCHES "^([a-z_]+) = (0x[0-9a-f]+|[0-9]+|true|false|\"[a-z]+\")( +#.*)?$")
        message(FATAL_ERROR "${path}: this line is no `name = value`:\n  ${line}")
      endif()
      string(APPEND text "\tp->${CMAKE_MATCH_1} = ${CMAKE_MATCH_2};\n")
    endforeach()
    string(APPEND text "}\n\n")
    string(APPEND table "\t{ \"${name}\", read_${name} },\n")
  endforeach()
  string(APPEND text "static const struct {\n\tconst char *name;\n\tvoid (*read)(struct soft_personality *p);\n} "
    "NAMES[] = {\n${table}};\n")
  # Not written when nothing has changed: what includes it need not be compiled again.
  if(EXISTS "${output}")
    file(READ "${output}" before)
    if(before STREQUAL text)
      return()
    endif()
  endif()
  file(WRITE "${output}" "${text}")
endfunction()

if(CMAKE_SCRIPT_MODE_FILE)
  softdev_personalities("${CMAKE_CURRENT_LIST_DIR}" "${OUTPUT}")
endif()
