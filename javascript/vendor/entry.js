// The exports of javascript/remora/vendor/preact.js; make.js bundles this file.

import {h} from "preact";
import htm from "htm";

export {createContext, createRef, Fragment, h, options, render} from "preact";
export {useCallback, useContext, useEffect, useLayoutEffect, useMemo, useReducer, useRef, useState} from "preact/hooks";
export const html = htm.bind(h);
