// Sites of CUDA code into which PTX is injected later, each a block of inline PTX with markers:
//
//     PTX_INJECT("site", PTX_IN(F32, a), PTX_MOD(F32, c), PTX_OUT(F32, d, result));
//
// An operand is (type, name) or (type, name, expression). In the PTX that the compiler makes of it each operand has a
// register %_x0, %_x1, ... of the block, those that are modified first, then the outputs, then the inputs, and a line
// of its own between the markers: register, m, o or i, register type, type and name. mm_ptx.ptx_inject reads them.
//
// Types of one's own: #define PTX_TYPE_INFO_<TYPE> PTX_TYPES_DESC(register type, type of mov, constraint, binding),
// where binding is ID for a value, U16 or U32 for the bits of one.

#ifndef PTX_INJECT_H_INCLUDE
#define PTX_INJECT_H_INCLUDE

#define PTXI_CAT_(a, b) a##b
#define PTXI_CAT(a, b) PTXI_CAT_(a, b)
#define PTXI_TEXT_(x) #x
#define PTXI_TEXT(x) PTXI_TEXT_(x)

// Types.
#define PTX_TYPES_DESC(reg, mov, constraint, binding) (reg, mov, constraint, binding)
#define PTX_TYPES_BIND_ID(v) (v)
#define PTX_TYPES_BIND_U16(v) (*reinterpret_cast<unsigned short*>(&(v)))
#define PTX_TYPES_BIND_U32(v) (*reinterpret_cast<unsigned int*>(&(v)))
#ifndef PTX_INJECT_NO_DEFAULT_TYPES
#define PTX_TYPE_INFO_F16 PTX_TYPES_DESC(b16, b16, h, U16)
#define PTX_TYPE_INFO_F16X2 PTX_TYPES_DESC(b32, b32, r, U32)
#define PTX_TYPE_INFO_S32 PTX_TYPES_DESC(s32, s32, r, ID)
#define PTX_TYPE_INFO_U32 PTX_TYPES_DESC(u32, u32, r, ID)
#define PTX_TYPE_INFO_F32 PTX_TYPES_DESC(f32, f32, f, ID)
#define PTX_TYPE_INFO_B32 PTX_TYPES_DESC(b32, b32, r, ID)
#endif
#define PTXI_REG(type) PTXI_REG_1(PTXI_CAT(PTX_TYPE_INFO_, type))
#define PTXI_REG_1(info) PTXI_REG_2 info
#define PTXI_REG_2(reg, mov, constraint, binding) PTXI_TEXT(reg)
#define PTXI_MOV(type) PTXI_MOV_1(PTXI_CAT(PTX_TYPE_INFO_, type))
#define PTXI_MOV_1(info) PTXI_MOV_2 info
#define PTXI_MOV_2(reg, mov, constraint, binding) PTXI_TEXT(mov)
#define PTXI_LETTER(type) PTXI_LETTER_1(PTXI_CAT(PTX_TYPE_INFO_, type))
#define PTXI_LETTER_1(info) PTXI_LETTER_2 info
#define PTXI_LETTER_2(reg, mov, constraint, binding) PTXI_TEXT(constraint)
#define PTXI_BIND(type) PTXI_BIND_1(PTXI_CAT(PTX_TYPE_INFO_, type))
#define PTXI_BIND_1(info) PTXI_BIND_2 info
#define PTXI_BIND_2(reg, mov, constraint, binding) PTXI_CAT(PTX_TYPES_BIND_, binding)

// Operands: (kind, type, name, expression).
#define PTX_MOD(...) PTXI_CAT(PTXI_OPERAND_, PTXI_COUNT(__VA_ARGS__))(m, __VA_ARGS__)
#define PTX_OUT(...) PTXI_CAT(PTXI_OPERAND_, PTXI_COUNT(__VA_ARGS__))(o, __VA_ARGS__)
#define PTX_IN(...) PTXI_CAT(PTXI_OPERAND_, PTXI_COUNT(__VA_ARGS__))(i, __VA_ARGS__)
#define PTXI_OPERAND_2(kind, type, name) (kind, type, name, name)
#define PTXI_OPERAND_3(kind, type, name, expression) (kind, type, name, expression)
#define PTXI_KIND(kind, type, name, expression) kind

// Lists of at most 31 operands: m of each, m of each with its number, those of one kind with a comma in front.
#define PTXI_COUNT(...) PTXI_COUNT_(__VA_ARGS__, 32, 31, 30, 29, 28, 27, 26, 25, 24, 23, 22, 21, 20, 19, 18, \
                                    17, 16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0)
#define PTXI_COUNT_(_1, _2, _3, _4, _5, _6, _7, _8, _9, _10, _11, _12, _13, _14, _15, _16, _17, _18, \
                    _19, _20, _21, _22, _23, _24, _25, _26, _27, _28, _29, _30, _31, _32, n, ...) n
#define PTXI_EACH(m, ...) PTXI_CAT(PTXI_EACH_, PTXI_COUNT(__VA_ARGS__))(m, __VA_ARGS__)
#define PTXI_EACH_1(m, e) m(e)
#define PTXI_EACH_2(m, e, ...) m(e) PTXI_EACH_1(m, __VA_ARGS__)
#define PTXI_EACH_3(m, e, ...) m(e) PTXI_EACH_2(m, __VA_ARGS__)
#define PTXI_EACH_4(m, e, ...) m(e) PTXI_EACH_3(m, __VA_ARGS__)
#define PTXI_EACH_5(m, e, ...) m(e) PTXI_EACH_4(m, __VA_ARGS__)
#define PTXI_EACH_6(m, e, ...) m(e) PTXI_EACH_5(m, __VA_ARGS__)
#define PTXI_EACH_7(m, e, ...) m(e) PTXI_EACH_6(m, __VA_ARGS__)
#define PTXI_EACH_8(m, e, ...) m(e) PTXI_EACH_7(m, __VA_ARGS__)
#define PTXI_EACH_9(m, e, ...) m(e) PTXI_EACH_8(m, __VA_ARGS__)
#define PTXI_EACH_10(m, e, ...) m(e) PTXI_EACH_9(m, __VA_ARGS__)
#define PTXI_EACH_11(m, e, ...) m(e) PTXI_EACH_10(m, __VA_ARGS__)
#define PTXI_EACH_12(m, e, ...) m(e) PTXI_EACH_11(m, __VA_ARGS__)
#define PTXI_EACH_13(m, e, ...) m(e) PTXI_EACH_12(m, __VA_ARGS__)
#define PTXI_EACH_14(m, e, ...) m(e) PTXI_EACH_13(m, __VA_ARGS__)
#define PTXI_EACH_15(m, e, ...) m(e) PTXI_EACH_14(m, __VA_ARGS__)
#define PTXI_EACH_16(m, e, ...) m(e) PTXI_EACH_15(m, __VA_ARGS__)
#define PTXI_EACH_17(m, e, ...) m(e) PTXI_EACH_16(m, __VA_ARGS__)
#define PTXI_EACH_18(m, e, ...) m(e) PTXI_EACH_17(m, __VA_ARGS__)
#define PTXI_EACH_19(m, e, ...) m(e) PTXI_EACH_18(m, __VA_ARGS__)
#define PTXI_EACH_20(m, e, ...) m(e) PTXI_EACH_19(m, __VA_ARGS__)
#define PTXI_EACH_21(m, e, ...) m(e) PTXI_EACH_20(m, __VA_ARGS__)
#define PTXI_EACH_22(m, e, ...) m(e) PTXI_EACH_21(m, __VA_ARGS__)
#define PTXI_EACH_23(m, e, ...) m(e) PTXI_EACH_22(m, __VA_ARGS__)
#define PTXI_EACH_24(m, e, ...) m(e) PTXI_EACH_23(m, __VA_ARGS__)
#define PTXI_EACH_25(m, e, ...) m(e) PTXI_EACH_24(m, __VA_ARGS__)
#define PTXI_EACH_26(m, e, ...) m(e) PTXI_EACH_25(m, __VA_ARGS__)
#define PTXI_EACH_27(m, e, ...) m(e) PTXI_EACH_26(m, __VA_ARGS__)
#define PTXI_EACH_28(m, e, ...) m(e) PTXI_EACH_27(m, __VA_ARGS__)
#define PTXI_EACH_29(m, e, ...) m(e) PTXI_EACH_28(m, __VA_ARGS__)
#define PTXI_EACH_30(m, e, ...) m(e) PTXI_EACH_29(m, __VA_ARGS__)
#define PTXI_EACH_31(m, e, ...) m(e) PTXI_EACH_30(m, __VA_ARGS__)
#define PTXI_EACH_32(m, e, ...) m(e) PTXI_EACH_31(m, __VA_ARGS__)
#define PTXI_NUMBERED(m, ...) PTXI_CAT(PTXI_SOME_, PTXI_COUNT(__VA_ARGS__))(m, __VA_ARGS__)
#define PTXI_SOME_1(m, none)
#define PTXI_SOME_2(m, none, ...) PTXI_NUM_1(m, 0, __VA_ARGS__)
#define PTXI_SOME_3(m, none, ...) PTXI_NUM_2(m, 0, __VA_ARGS__)
#define PTXI_SOME_4(m, none, ...) PTXI_NUM_3(m, 0, __VA_ARGS__)
#define PTXI_SOME_5(m, none, ...) PTXI_NUM_4(m, 0, __VA_ARGS__)
#define PTXI_SOME_6(m, none, ...) PTXI_NUM_5(m, 0, __VA_ARGS__)
#define PTXI_SOME_7(m, none, ...) PTXI_NUM_6(m, 0, __VA_ARGS__)
#define PTXI_SOME_8(m, none, ...) PTXI_NUM_7(m, 0, __VA_ARGS__)
#define PTXI_SOME_9(m, none, ...) PTXI_NUM_8(m, 0, __VA_ARGS__)
#define PTXI_SOME_10(m, none, ...) PTXI_NUM_9(m, 0, __VA_ARGS__)
#define PTXI_SOME_11(m, none, ...) PTXI_NUM_10(m, 0, __VA_ARGS__)
#define PTXI_SOME_12(m, none, ...) PTXI_NUM_11(m, 0, __VA_ARGS__)
#define PTXI_SOME_13(m, none, ...) PTXI_NUM_12(m, 0, __VA_ARGS__)
#define PTXI_SOME_14(m, none, ...) PTXI_NUM_13(m, 0, __VA_ARGS__)
#define PTXI_SOME_15(m, none, ...) PTXI_NUM_14(m, 0, __VA_ARGS__)
#define PTXI_SOME_16(m, none, ...) PTXI_NUM_15(m, 0, __VA_ARGS__)
#define PTXI_SOME_17(m, none, ...) PTXI_NUM_16(m, 0, __VA_ARGS__)
#define PTXI_SOME_18(m, none, ...) PTXI_NUM_17(m, 0, __VA_ARGS__)
#define PTXI_SOME_19(m, none, ...) PTXI_NUM_18(m, 0, __VA_ARGS__)
#define PTXI_SOME_20(m, none, ...) PTXI_NUM_19(m, 0, __VA_ARGS__)
#define PTXI_SOME_21(m, none, ...) PTXI_NUM_20(m, 0, __VA_ARGS__)
#define PTXI_SOME_22(m, none, ...) PTXI_NUM_21(m, 0, __VA_ARGS__)
#define PTXI_SOME_23(m, none, ...) PTXI_NUM_22(m, 0, __VA_ARGS__)
#define PTXI_SOME_24(m, none, ...) PTXI_NUM_23(m, 0, __VA_ARGS__)
#define PTXI_SOME_25(m, none, ...) PTXI_NUM_24(m, 0, __VA_ARGS__)
#define PTXI_SOME_26(m, none, ...) PTXI_NUM_25(m, 0, __VA_ARGS__)
#define PTXI_SOME_27(m, none, ...) PTXI_NUM_26(m, 0, __VA_ARGS__)
#define PTXI_SOME_28(m, none, ...) PTXI_NUM_27(m, 0, __VA_ARGS__)
#define PTXI_SOME_29(m, none, ...) PTXI_NUM_28(m, 0, __VA_ARGS__)
#define PTXI_SOME_30(m, none, ...) PTXI_NUM_29(m, 0, __VA_ARGS__)
#define PTXI_SOME_31(m, none, ...) PTXI_NUM_30(m, 0, __VA_ARGS__)
#define PTXI_SOME_32(m, none, ...) PTXI_NUM_31(m, 0, __VA_ARGS__)
#define PTXI_NUM_1(m, i, e) m(i, e)
#define PTXI_NUM_2(m, i, e, ...) m(i, e) PTXI_NUM_1(m, PTXI_CAT(PTXI_INC_, i), __VA_ARGS__)
#define PTXI_NUM_3(m, i, e, ...) m(i, e) PTXI_NUM_2(m, PTXI_CAT(PTXI_INC_, i), __VA_ARGS__)
#define PTXI_NUM_4(m, i, e, ...) m(i, e) PTXI_NUM_3(m, PTXI_CAT(PTXI_INC_, i), __VA_ARGS__)
#define PTXI_NUM_5(m, i, e, ...) m(i, e) PTXI_NUM_4(m, PTXI_CAT(PTXI_INC_, i), __VA_ARGS__)
#define PTXI_NUM_6(m, i, e, ...) m(i, e) PTXI_NUM_5(m, PTXI_CAT(PTXI_INC_, i), __VA_ARGS__)
#define PTXI_NUM_7(m, i, e, ...) m(i, e) PTXI_NUM_6(m, PTXI_CAT(PTXI_INC_, i), __VA_ARGS__)
#define PTXI_NUM_8(m, i, e, ...) m(i, e) PTXI_NUM_7(m, PTXI_CAT(PTXI_INC_, i), __VA_ARGS__)
#define PTXI_NUM_9(m, i, e, ...) m(i, e) PTXI_NUM_8(m, PTXI_CAT(PTXI_INC_, i), __VA_ARGS__)
#define PTXI_NUM_10(m, i, e, ...) m(i, e) PTXI_NUM_9(m, PTXI_CAT(PTXI_INC_, i), __VA_ARGS__)
#define PTXI_NUM_11(m, i, e, ...) m(i, e) PTXI_NUM_10(m, PTXI_CAT(PTXI_INC_, i), __VA_ARGS__)
#define PTXI_NUM_12(m, i, e, ...) m(i, e) PTXI_NUM_11(m, PTXI_CAT(PTXI_INC_, i), __VA_ARGS__)
#define PTXI_NUM_13(m, i, e, ...) m(i, e) PTXI_NUM_12(m, PTXI_CAT(PTXI_INC_, i), __VA_ARGS__)
#define PTXI_NUM_14(m, i, e, ...) m(i, e) PTXI_NUM_13(m, PTXI_CAT(PTXI_INC_, i), __VA_ARGS__)
#define PTXI_NUM_15(m, i, e, ...) m(i, e) PTXI_NUM_14(m, PTXI_CAT(PTXI_INC_, i), __VA_ARGS__)
#define PTXI_NUM_16(m, i, e, ...) m(i, e) PTXI_NUM_15(m, PTXI_CAT(PTXI_INC_, i), __VA_ARGS__)
#define PTXI_NUM_17(m, i, e, ...) m(i, e) PTXI_NUM_16(m, PTXI_CAT(PTXI_INC_, i), __VA_ARGS__)
#define PTXI_NUM_18(m, i, e, ...) m(i, e) PTXI_NUM_17(m, PTXI_CAT(PTXI_INC_, i), __VA_ARGS__)
#define PTXI_NUM_19(m, i, e, ...) m(i, e) PTXI_NUM_18(m, PTXI_CAT(PTXI_INC_, i), __VA_ARGS__)
#define PTXI_NUM_20(m, i, e, ...) m(i, e) PTXI_NUM_19(m, PTXI_CAT(PTXI_INC_, i), __VA_ARGS__)
#define PTXI_NUM_21(m, i, e, ...) m(i, e) PTXI_NUM_20(m, PTXI_CAT(PTXI_INC_, i), __VA_ARGS__)
#define PTXI_NUM_22(m, i, e, ...) m(i, e) PTXI_NUM_21(m, PTXI_CAT(PTXI_INC_, i), __VA_ARGS__)
#define PTXI_NUM_23(m, i, e, ...) m(i, e) PTXI_NUM_22(m, PTXI_CAT(PTXI_INC_, i), __VA_ARGS__)
#define PTXI_NUM_24(m, i, e, ...) m(i, e) PTXI_NUM_23(m, PTXI_CAT(PTXI_INC_, i), __VA_ARGS__)
#define PTXI_NUM_25(m, i, e, ...) m(i, e) PTXI_NUM_24(m, PTXI_CAT(PTXI_INC_, i), __VA_ARGS__)
#define PTXI_NUM_26(m, i, e, ...) m(i, e) PTXI_NUM_25(m, PTXI_CAT(PTXI_INC_, i), __VA_ARGS__)
#define PTXI_NUM_27(m, i, e, ...) m(i, e) PTXI_NUM_26(m, PTXI_CAT(PTXI_INC_, i), __VA_ARGS__)
#define PTXI_NUM_28(m, i, e, ...) m(i, e) PTXI_NUM_27(m, PTXI_CAT(PTXI_INC_, i), __VA_ARGS__)
#define PTXI_NUM_29(m, i, e, ...) m(i, e) PTXI_NUM_28(m, PTXI_CAT(PTXI_INC_, i), __VA_ARGS__)
#define PTXI_NUM_30(m, i, e, ...) m(i, e) PTXI_NUM_29(m, PTXI_CAT(PTXI_INC_, i), __VA_ARGS__)
#define PTXI_NUM_31(m, i, e, ...) m(i, e) PTXI_NUM_30(m, PTXI_CAT(PTXI_INC_, i), __VA_ARGS__)
#define PTXI_NUM_32(m, i, e, ...) m(i, e) PTXI_NUM_31(m, PTXI_CAT(PTXI_INC_, i), __VA_ARGS__)
#define PTXI_INC_0 1
#define PTXI_INC_1 2
#define PTXI_INC_2 3
#define PTXI_INC_3 4
#define PTXI_INC_4 5
#define PTXI_INC_5 6
#define PTXI_INC_6 7
#define PTXI_INC_7 8
#define PTXI_INC_8 9
#define PTXI_INC_9 10
#define PTXI_INC_10 11
#define PTXI_INC_11 12
#define PTXI_INC_12 13
#define PTXI_INC_13 14
#define PTXI_INC_14 15
#define PTXI_INC_15 16
#define PTXI_INC_16 17
#define PTXI_INC_17 18
#define PTXI_INC_18 19
#define PTXI_INC_19 20
#define PTXI_INC_20 21
#define PTXI_INC_21 22
#define PTXI_INC_22 23
#define PTXI_INC_23 24
#define PTXI_INC_24 25
#define PTXI_INC_25 26
#define PTXI_INC_26 27
#define PTXI_INC_27 28
#define PTXI_INC_28 29
#define PTXI_INC_29 30
#define PTXI_INC_30 31
#define PTXI_INC_31 32
#define PTXI_COMMA_0
#define PTXI_COMMA_1 ,
#define PTXI_COMMA_2 ,
#define PTXI_COMMA_3 ,
#define PTXI_COMMA_4 ,
#define PTXI_COMMA_5 ,
#define PTXI_COMMA_6 ,
#define PTXI_COMMA_7 ,
#define PTXI_COMMA_8 ,
#define PTXI_COMMA_9 ,
#define PTXI_COMMA_10 ,
#define PTXI_COMMA_11 ,
#define PTXI_COMMA_12 ,
#define PTXI_COMMA_13 ,
#define PTXI_COMMA_14 ,
#define PTXI_COMMA_15 ,
#define PTXI_COMMA_16 ,
#define PTXI_COMMA_17 ,
#define PTXI_COMMA_18 ,
#define PTXI_COMMA_19 ,
#define PTXI_COMMA_20 ,
#define PTXI_COMMA_21 ,
#define PTXI_COMMA_22 ,
#define PTXI_COMMA_23 ,
#define PTXI_COMMA_24 ,
#define PTXI_COMMA_25 ,
#define PTXI_COMMA_26 ,
#define PTXI_COMMA_27 ,
#define PTXI_COMMA_28 ,
#define PTXI_COMMA_29 ,
#define PTXI_COMMA_30 ,
#define PTXI_COMMA_31 ,
#define PTXI_MODS(e) PTXI_CAT(PTXI_MODS_, PTXI_KIND e)(e)
#define PTXI_MODS_m(e) , e
#define PTXI_MODS_o(e)
#define PTXI_MODS_i(e)
#define PTXI_OUTS(e) PTXI_CAT(PTXI_OUTS_, PTXI_KIND e)(e)
#define PTXI_OUTS_m(e)
#define PTXI_OUTS_o(e) , e
#define PTXI_OUTS_i(e)
#define PTXI_INS(e) PTXI_CAT(PTXI_INS_, PTXI_KIND e)(e)
#define PTXI_INS_m(e)
#define PTXI_INS_o(e)
#define PTXI_INS_i(e) , e
#define PTXI_SORTED(...) \
  - PTXI_EACH(PTXI_MODS, __VA_ARGS__) PTXI_EACH(PTXI_OUTS, __VA_ARGS__) PTXI_EACH(PTXI_INS, __VA_ARGS__)
#define PTXI_WRITTEN(...) - PTXI_EACH(PTXI_MODS, __VA_ARGS__) PTXI_EACH(PTXI_OUTS, __VA_ARGS__)
#define PTXI_READ(...) - PTXI_EACH(PTXI_INS, __VA_ARGS__)

// What an operand adds to the text, and to the operands of asm.
#define PTXI_DECLARE(i, e) PTXI_DECLARE_(i, PTXI_OPEN e)
#define PTXI_DECLARE_(...) PTXI_DECLARE_I(__VA_ARGS__)
#define PTXI_DECLARE_I(i, kind, type, name, v) ".reg ." PTXI_REG(type) " %%_x" PTXI_TEXT(i) ";\n\t"
#define PTXI_LOAD(i, e) PTXI_LOAD_(i, PTXI_OPEN e)
#define PTXI_LOAD_(...) PTXI_LOAD_I(__VA_ARGS__)
#define PTXI_LOAD_I(i, kind, type, name, v) PTXI_CAT(PTXI_LOAD_, kind)(i, type)
#define PTXI_LOAD_m(i, type) "mov." PTXI_MOV(type) " %%_x" PTXI_TEXT(i) ", %" PTXI_TEXT(i) ";\n\t"
#define PTXI_LOAD_o(i, type)
#define PTXI_LOAD_i(i, type) PTXI_LOAD_m(i, type)
#define PTXI_MARK(i, e) PTXI_MARK_(i, PTXI_OPEN e)
#define PTXI_MARK_(...) PTXI_MARK_I(__VA_ARGS__)
#define PTXI_MARK_I(i, kind, type, name, v) \
  "// _x" PTXI_TEXT(i) " " #kind " " PTXI_REG(type) " " #type " " #name "\n\t"
#define PTXI_STORE(i, e) PTXI_STORE_(i, PTXI_OPEN e)
#define PTXI_STORE_(...) PTXI_STORE_I(__VA_ARGS__)
#define PTXI_STORE_I(i, kind, type, name, v) "mov." PTXI_MOV(type) " %" PTXI_TEXT(i) ", %%_x" PTXI_TEXT(i) ";\n\t"
#define PTXI_RESULT(i, e) PTXI_RESULT_(i, PTXI_OPEN e)
#define PTXI_RESULT_(...) PTXI_RESULT_I(__VA_ARGS__)
#define PTXI_RESULT_I(i, kind, type, name, v) \
  PTXI_CAT(PTXI_COMMA_, i) PTXI_CAT(PTXI_SIGN_, kind) PTXI_LETTER(type)(PTXI_BIND(type)(v))
#define PTXI_SIGN_m "+"
#define PTXI_SIGN_o "="
#define PTXI_VALUE(i, e) PTXI_VALUE_(i, PTXI_OPEN e)
#define PTXI_VALUE_(...) PTXI_VALUE_I(__VA_ARGS__)
#define PTXI_VALUE_I(i, kind, type, name, v) PTXI_CAT(PTXI_COMMA_, i) PTXI_LETTER(type)(PTXI_BIND(type)(v))
#define PTXI_OPEN(...) __VA_ARGS__

#define PTX_INJECT(site, ...)                                                                     \
  do {                                                                                            \
    asm("{\n\t" PTXI_NUMBERED(PTXI_DECLARE, PTXI_SORTED(__VA_ARGS__))                            \
            PTXI_NUMBERED(PTXI_LOAD, PTXI_SORTED(__VA_ARGS__)) "// PTX_INJECT_START " site "\n\t" \
        PTXI_NUMBERED(PTXI_MARK, PTXI_SORTED(__VA_ARGS__)) "// PTX_INJECT_END\n\t"               \
        PTXI_NUMBERED(PTXI_STORE, PTXI_WRITTEN(__VA_ARGS__)) "}"                                  \
        : PTXI_NUMBERED(PTXI_RESULT, PTXI_WRITTEN(__VA_ARGS__))                                   \
        : PTXI_NUMBERED(PTXI_VALUE, PTXI_READ(__VA_ARGS__)));                                     \
  } while (0)
#define PTX_INJECT_TOK(site, ...) PTX_INJECT(PTXI_TEXT(site), __VA_ARGS__)

#endif  // PTX_INJECT_H_INCLUDE
