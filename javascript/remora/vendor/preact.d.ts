// The types of preact.js. They come from the packages that it bundles.

import type {VNode} from "preact";
import type {useRef as anyRef} from "preact/hooks";

export {createContext, createRef, Fragment, h, options, render} from "preact";
export {useCallback, useContext, useEffect, useLayoutEffect, useMemo, useReducer, useState} from "preact/hooks";

/** A ref on an element of a template; Preact fills it before effects run and before events come. */
export type Filled<T> = {current: T};
export const useRef: typeof anyRef & (<T>() => Filled<T>);

type WithElements = HTMLElement & {readonly children: HTMLCollectionOf<HTMLElement>};
/** The event of a field. A handler in a template gets it, unless it names another type. */
export type FieldEvent = Event & {readonly target: HTMLInputElement};
export type Pointer = PointerEvent & {readonly currentTarget: WithElements};
export type Key = KeyboardEvent & {readonly currentTarget: WithElements};

/** A value in a template. */
export type Value = ((event: FieldEvent) => unknown) | object | string | number | boolean | null | undefined;

/** `htm` of the package htm, bound to `h`; several roots are several nodes. */
export const html: (strings: TemplateStringsArray, ...values: Value[]) => VNode | VNode[];
